from pathlib import Path

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


PUBLIC = Path(__file__).parent / "data" / "public"


def test_a_cudagraph_mode_is_the_one_that_vllm_ends_with() -> None:
    log = (PUBLIC / "cudagraph_downgraded.log").read_text()
    assert read_facts(log)["cudagraph_mode"] == "PIECEWISE"
    assert read_facts(log.partition("; setting")[0])["cudagraph_mode"] == "FULL_AND_PIECEWISE"


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("; setting cudagraph_mode=NONE because attention is not compiled piecewise", "NONE"),
        ("Overriding cudagraph_mode to FULL_DECODE_ONLY.", "FULL_DECODE_ONLY"),
        ("Overriding cudagraph_mode from FULL to PIECEWISE.", "PIECEWISE"),
        ("Cudagraph mode FULL requires piecewise capture, but the loaded. Overriding to CUDAGraphMode.NONE.", "NONE"),
    ],
)
def test_wordings_of_another_cudagraph_mode(said: str, mode: str) -> None:
    log = f"'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>\nWARNING setting cudagraph_mode=FULL\n{said}"
    assert read_facts(log)["cudagraph_mode"] == mode


def test_a_draft_is_compiled_after_its_model() -> None:
    log = (PUBLIC / "cudagraph_downgraded.log").read_text()
    # vLLM says so itself: "init engine ... took 162.10 s (compilation: 62.13 s)".
    assert start_times(log) == pytest.approx({"compilation": 55.19 + 6.94, "engine": 162.10})
    workers = "".join(f"(Worker_TP{rank} pid={rank}) INFO torch.compile took {rank}5.5 s in total\n" for rank in (1, 2))
    assert start_times(workers + workers)["compilation"] == pytest.approx(51.0)


@pytest.mark.parametrize(
    ("said", "backend"),
    [
        ("Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: [...]", "FlashInfer CUTLASS"),
        ("Using ROCm AITER Unquantized MoE backend out of potential backends: [...]", "ROCm AITER"),
        ("Using 'MARLIN' WNA16 MoE backend.", "MARLIN"),
        ("Using CUTLASS W4A8 Int8 MoE backend out of potential backends", "CUTLASS"),
        ("Using VLLM_CUTLASS Fp8 MoE backend out of potential backends", "VLLM_CUTLASS"),
        ("Using TritonExperts MoE backend", "TritonExperts"),
    ],
)
def test_moe_backends(said: str, backend: str) -> None:
    assert read_facts(f"INFO [a.py:1] {said}") == {"moe_backend": backend}


def test_the_moe_backend_of_a_public_log() -> None:
    assert read_facts((PUBLIC / "moe_two_words.log").read_text()) == {"moe_backend": "FlashInfer CUTLASS"}


@pytest.mark.parametrize(
    ("said", "backend"),
    [
        ("Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].", "FLASHINFER"),
        ("Using ROCM_AITER_FA backend out of potential backends: ['ROCM_AITER_FA', 'TRITON_ATTN'].", "ROCM_AITER_FA"),
        ("Using TRITON_MLA backend (selected via --attention-backend).", "TRITON_MLA"),
        ("Using CPU_MLA backend.", "CPU_MLA"),
        ("Using Torch SDPA backend.", "Torch SDPA"),
        ("Using Triton MLA backend on V1 engine.", "Triton MLA"),
        ("Using Flash Attention backend on V1 engine.", "Flash Attention"),
        ("Using TurboQuant attention backend.", "TurboQuant"),
        ("Using Torch SDPA backend for ViT model.", None),
        ("Using backend AttentionBackendEnum.FLASH_ATTN for vit attention", None),
        ("Using FLASHINFER MLA prefill backend.", None),
        ("Using triton Mamba SSU backend.", None),
        ("Using native fused KDA decode backend.", None),
        ("Using Transformers modeling backend.", None),
    ],
)
def test_attention_backends(said: str, backend: str | None) -> None:
    assert read_facts(f"INFO [a.py:1] {said}").get("attention_backend") == backend
