"""The whole call as a CUDA graph: hundreds of launches become one, for networks that wait for the host.

A graph reads and writes where it did when it was recorded. So it has arguments and results of its own: each call copies
arguments in (one launch), replays, and copies results out into fresh tensors (one launch). Nothing depends on where the
caller's tensors lie or on what they held before. A function serves one set of shapes, so a graph does too.
"""

from __future__ import annotations

from contracts.contract import Contract, Variant
from contracts.cuda_adaptor import returns_of
from contracts.tensors import TensorSpec
from engine.codegen import Recipe, Tunable, cpp
from engine.codegen.aten_calls import is_random
from engine.codegen.cpp import words

KEY = "launches"
# Fewer launches than this, and copying arguments and results costs as much as it saves.
_FEWEST = 4
# One ATen call that is many launches.
_LAUNCH_MANY = words("lstm gru rnn_tanh rnn_relu scaled_dot_product_attention")

RECORDING = """\
// One call of this file's work as a CUDA graph, with the arguments and results that it reads and writes.
struct Recording {
  std::vector<at::Tensor> arguments, results;
  at::cuda::CUDAGraph graph;
  cudaEvent_t done;  // Calls on other streams wait for the one before.
};

// Memory to memory, up to 64 pairs a launch: a row of blocks each.
struct MemoryCopies {
  const char* source[64];
  char* target[64];
  int64_t bytes[64];
};
__global__ void __launch_bounds__(256) copy_memory_kernel(const MemoryCopies copies) {
  const char* const source = copies.source[blockIdx.y];
  char* const target = copies.target[blockIdx.y];
  const int64_t bytes = copies.bytes[blockIdx.y], threads = int64_t(gridDim.x) * blockDim.x;
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool aligned = (reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target)) % 16 == 0;
  const int64_t vectors = aligned ? bytes / 16 : 0;
  for (int64_t i = first; i < vectors; i += threads) {
    reinterpret_cast<float4*>(target)[i] = reinterpret_cast<const float4*>(source)[i];
  }
  for (int64_t i = vectors * 16 + first; i < bytes; i += threads) target[i] = source[i];
}
static void copy_memory(const std::vector<at::Tensor>& sources, const std::vector<at::Tensor>& targets,
                        cudaStream_t stream) {
  MemoryCopies copies;
  int64_t most = 0;
  int count = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const int64_t bytes = sources[i].numel() * static_cast<int64_t>(sources[i].element_size());
    copies.source[count] = static_cast<const char*>(sources[i].const_data_ptr());
    copies.target[count] = static_cast<char*>(targets[i].data_ptr());
    copies.bytes[count++] = bytes;
    most = bytes > most ? bytes : most;
    if (count == 64 || i + 1 == sources.size()) {
      const int64_t wanted = most / (256 * 16 * 4) + 1;
      const dim3 grid(static_cast<unsigned>(wanted < 1024 ? wanted : 1024), count);
      copy_memory_kernel<<<grid, 256, 0, stream>>>(copies);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      count = 0;
      most = 0;
    }
  }
}

// Runs `work` once, so that libraries choose their algorithms and take their memory, and then records it.
template <typename Work>
static Recording* record(const std::vector<at::Tensor>& arguments, const Work& work) {
  auto recording = std::make_unique<Recording>();
  for (const at::Tensor& argument : arguments) {
    recording->arguments.push_back(at::empty_strided(argument.sizes(), argument.strides(), argument.options()));
  }
  const cudaStream_t callers = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&recording->done, cudaEventDisableTiming));
  copy_memory(arguments, recording->arguments, callers);
  C10_CUDA_CHECK(cudaEventRecord(recording->done, callers));
  // What runs on the default stream cannot be recorded.
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const cudaStream_t own = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaStreamWaitEvent(own, recording->done, 0));
  work(recording->arguments);
  recording->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    recording->results = work(recording->arguments);
  } catch (...) {
    // A thread that went on recording could not allocate any more.
    try {
      recording->graph.capture_end();
    } catch (...) {
    }
    throw;
  }
  recording->graph.capture_end();
  C10_CUDA_CHECK(cudaEventRecord(recording->done, own));
  return recording.release();
}
"""


def tunable(contract: Contract, launches: int, torch_calls: tuple[str, ...]) -> Tunable | None:
    """The choice, where a graph would be right and may pay.

    Args:
        contract: What is computed.
        launches: Own kernels and library calls of one call.
        torch_calls: ATen operators among them.
    """
    many_calls = launches >= _FEWEST
    many = many_calls or any(name in _LAUNCH_MANY for name in torch_calls)
    if not many or not all(_records(contract, variant) for variant in contract.variants):
        return None
    return Tunable(
        key=KEY, direction="C", values=("single", "graph"), weight=min(1.0, launches / 20 if many_calls else 0.9),
        meaning="kernels launched one by one, or recorded once as a CUDA graph that each call replays",
    )


def chosen(recipe: Recipe, choice: Tunable | None) -> bool:
    """True when the recipe wants the graph and there is one."""
    return choice is not None and recipe.choices.get(KEY) == "graph"


def function(contract: Contract, variant: Variant) -> str:
    """`<name>_replayed`, which takes and gives what `<name>_variant` does."""
    tensors = contract.tensor_arguments
    taken = ", ".join(f"const torch::Tensor& argument_{i}" for i in range(len(tensors)))
    names = ", ".join(f"argument_{i}" for i in range(len(tensors)))
    result_type = returns_of(len(contract.outputs))
    name = f"{contract.name}_variant"
    call = f"{name}({', '.join(f'own[{i}]' for i in range(len(tensors)))})"
    single = len(contract.outputs) == 1
    made = f"std::vector<at::Tensor>{{{call}}}" if single else call
    lines = [
        f"// {name}, replayed. Recordings live as long as the process, one a device.",
        f"static {result_type} {contract.name}_replayed({taken}) {{",
        "  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();",
        "  cudaStreamCaptureStatus capturing;",
        "  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &capturing));",
        "  // Where the caller records a graph of its own, this call becomes part of it.",
        f"  if (capturing != cudaStreamCaptureStatusNone) return {name}({names});",
        "  static Recording* recordings[64] = {};",
        "  static std::mutex mutex;",
        "  const std::lock_guard<std::mutex> lock(mutex);",
        "  const int64_t device = argument_0.get_device();",
        '  TORCH_CHECK(device >= 0 && device < 64, "device index ", device, " is out of range");',
        f"  const std::vector<at::Tensor> arguments{{{names}}};",
        f"  const auto work = [](const std::vector<at::Tensor>& own) {{ return {made}; }};",
        "  if (recordings[device] == nullptr) recordings[device] = record(arguments, work);",
        "  Recording& recording = *recordings[device];",
        "  C10_CUDA_CHECK(cudaStreamWaitEvent(stream, recording.done, 0));",
        "  copy_memory(arguments, recording.arguments, stream);",
        "  recording.graph.replay();",
        "  std::vector<at::Tensor> results;",
        *(f"  results.push_back({_fresh(spec)});" for spec in variant.outputs),
        "  copy_memory(recording.results, results, stream);",
        "  C10_CUDA_CHECK(cudaEventRecord(recording.done, stream));",
        "  return results[0];" if single else "  return results;",
        "}", "",
    ]
    return "\n".join(lines)


def _fresh(spec: TensorSpec) -> str:
    options = f"argument_0.options().dtype({cpp.scalar_type(spec.dtype)})"
    return f"at::empty_strided({cpp.sizes(spec.shape)}, {cpp.sizes(spec.stride)}, {options})"


def _records(contract: Contract, variant: Variant) -> bool:
    """True when a replay does what a call does: nothing drawn, nothing written in place, memory copied whole."""
    graph = variant.graph
    if graph is None or graph.mutations or any(is_random(node) for node in graph.nodes):
        return False
    if any(a.mutable for a in contract.tensor_arguments) or not contract.tensor_arguments or not variant.outputs:
        return False
    return all(_whole(spec) for spec in (*variant.tensors.values(), *variant.outputs))


def _whole(spec: TensorSpec) -> bool:
    """True when the elements fill their memory without gaps or repeats."""
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(spec.shape, spec.stride, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return spec.numel > 0
