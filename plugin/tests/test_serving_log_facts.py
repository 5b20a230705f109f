import pytest

from pytest_decodegate.serving.log_facts import compiled_in_inference, headline, lines, read_facts

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
