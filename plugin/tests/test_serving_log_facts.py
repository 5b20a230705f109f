import pytest

from pytest_decodegate.serving.log_facts import compiled_in_inference, headline, lines, read_facts, start_times

CPU = """\
(EngineCore pid=5) INFO 11-29 18:45:54 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m', \
dtype=torch.float32, max_seq_len=1024, load_format=dummy, tensor_parallel_size=1, quantization=None, \
enforce_eager=True, kv_cache_dtype=auto, enable_prefix_caching=False, compilation_config={'cudagraph_mode': \
<CUDAGraphMode.NONE: 0>, 'pass_config': {'fuse_allreduce_rms': False}}
(EngineCore pid=5) INFO 11-29 18:46:04 [utils.py:347] Using LBHNC KV cache layout.
(EngineCore pid=5) INFO 11-29 18:46:04 [kv_cache_utils.py:2327] CPU KV cache size: 524,288 tokens, Maximum concurrency
"""
GPU = """\
(Worker_TP0 pid=9) INFO 11-29 18:45:54 [pynccl.py:111] vLLM is using nccl==2.28.9
(Worker_TP0 pid=9) INFO 11-29 18:45:55 [cuda_communicator.py:354] Using ['PYNCCL'] all-reduce backends (in dispatch \
order) for group 'tp:0' out of potential backends: ['NCCL_SYMM_MEM', 'PYNCCL'].
(Worker_TP0 pid=9) INFO 11-29 18:45:56 [cuda.py:507] Using FLASH_ATTN_MLA attention backend out of potential backends: \
['FLASH_ATTN_MLA', 'TRITON_MLA'].
(Worker_TP0 pid=9) INFO 11-29 18:45:56 [int_wna16.py:287] Using 'MARLIN' WNA16 MoE backend.
(Worker_TP0 pid=9) INFO 11-29 18:45:56 [jit_monitor.py:90] Kernel JIT monitor activated; later compilations are reported
"""


def test_cpu_log() -> None:
    assert read_facts(CPU) == {
        "vllm": "0.32.0",
        "dtype": "float32",
        "quantization": None,
        "kv_cache_dtype": "auto",
        "load_format": "dummy",
        "tensor_parallel": 1,
        "max_model_len": 1024,
        "prefix_caching": False,
        "enforce_eager": True,
        "cudagraph_mode": "NONE",
        "fuse_allreduce_rms": False,
        "kv_cache_tokens": 524288,
    }


def test_gpu_log() -> None:
    assert read_facts(GPU) == {
        "nccl": "2.28.9",
        "allreduce_backends": ["PYNCCL"],
        "attention_backend": "FLASH_ATTN_MLA",
        "moe_backend": "MARLIN",
        "jit_monitor": True,
    }


STARTED = """\
(Worker_TP1 pid=9) INFO 11-29 18:46:56 [gpu_model_runner.py:5150] Model loading took 33.21 GiB memory and 41.5 seconds
(Worker_TP0 pid=8) INFO 11-29 18:46:57 [gpu_model_runner.py:5150] Model loading took 33.21 GiB and 42.512345 seconds
(Worker_TP0 pid=8) INFO 11-29 18:47:20 [monitor.py:48] torch.compile takes 23.10 s in total
(Worker_TP0 pid=8) INFO 11-29 18:47:50 [gpu_model_runner.py:6582] Graph capturing finished in 31 secs, took 0.45 GiB
(Worker_TP0 pid=8) INFO 11-29 18:47:52 [kernel_warmup.py:189] JIT kernel warmup finished in 2.25s.
(EngineCore pid=5) INFO 11-29 18:47:53 [core.py:379] init engine (profile, create kv cache, warmup model) took 95.60 s \
(compilation: 23.10 s)
"""


def test_the_parts_of_a_start_are_those_of_the_slowest_worker() -> None:
    times = {"weights": 42.512345, "compilation": 23.1, "graphs": 31, "kernels": 2.25, "engine": 95.6}
    assert start_times(STARTED) == times
    older = STARTED.replace(" took 95.60 s", " took 95.60 seconds").replace("torch.compile takes", "torch.compile took")
    assert start_times(older) == times
    assert start_times(CPU) == {}


def test_speculative_decoding_is_told_by_method_and_not_by_the_place_of_its_model() -> None:
    log = (
        "config: model='/m', speculative_config=SpeculativeConfig(method='eagle3', model='/d', num_spec_tokens=3), x=1"
    )
    assert read_facts(log) == {"speculative_method": "eagle3", "draft_tokens": 3}


def test_pinned_attention_backend() -> None:
    assert read_facts("INFO [cuda.py:480] Using TRITON_MLA backend.") == {"attention_backend": "TRITON_MLA"}


def test_nothing_is_guessed() -> None:
    assert read_facts("hello") == {}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("\n\n", ""),
        ("(Worker pid=3) INFO 11-29 18:46:03 [model_runner.py:68] Loading model...\n", "Loading model..."),
        ("Loading shards:  10%\rLoading shards:  50%\r\x1b[32mLoading shards:  90%\x1b[0m", "Loading shards:  90%"),
        ("plain words\n", "plain words"),
        ("x" * 120, "x" * 120),
        ("x" * 121, "x" * 117 + "..."),
    ],
)
def test_headline(log: str, said: str) -> None:
    assert headline(log) == said


def test_a_line_is_what_a_terminal_shows() -> None:
    assert lines("a\r\n  \n10%\r20%\n\x1b[1mc\x1b[0m\n") == ["a", "20%", "c"]


def test_compilation_while_serving() -> None:
    late = "WARNING [jit_monitor.py:1] Triton kernel JIT compilation during inference: f. This causes a latency spike"
    assert compiled_in_inference(f"{GPU}{late}\n") == (late,)
    assert compiled_in_inference(GPU) == ()
