"""Own kernels that only change a tensor's order of memory, and the one launch that repacks all weights.

ATen's copy between the contiguous and the channels-last order touches one sector an element on one side; a kernel with
tiles in shared memory does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.tensors import TensorSpec
from engine.codegen.kernel_text import Kernel
from engine.codegen.pointwise import write_pointwise
from engine.codegen.prims import Load
from engine.codegen.regions import Choices
from engine.records import Device

# Helper for the host code of convolutions: weights [O, C, ...] with C steps of 1, all in one launch.
PACK_WEIGHTS = """\
// Weights of convolutions in channels-last order, made anew in each call: weights may change between calls.
struct WeightsToPack {
  const float* source[64];
  float* target[64];
  int channels[64], taps[64];
  int64_t numel[64];
};
__global__ void pack_weights_kernel(const WeightsToPack weights) {
  const int which = blockIdx.y, channels = weights.channels[which], taps = weights.taps[which];
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < weights.numel[which]; i += threads) {
    const int channel = i % channels, tap = i / channels % taps;
    weights.target[which][i] = weights.source[which][((i / channels / taps) * channels + channel) * taps + tap];
  }
}
static void pack_weights(std::initializer_list<std::pair<at::Tensor, at::Tensor>> pairs, cudaStream_t stream) {
  WeightsToPack weights;
  int count = 0, left = static_cast<int>(pairs.size());
  for (const auto& [source, target] : pairs) {
    weights.source[count] = source.data_ptr<float>();
    weights.target[count] = target.data_ptr<float>();
    weights.channels[count] = static_cast<int>(source.size(1));
    weights.taps[count] = static_cast<int>(source.stride(1));
    weights.numel[count++] = source.numel();
    if (count == 64 || count == left) {
      pack_weights_kernel<<<dim3(64, count), 256, 0, stream>>>(weights);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      left -= count;
      count = 0;
    }
  }
}
"""


def write_format_copy(
    value: str,
    twin: str,
    source: TensorSpec,
    target: TensorSpec,
    *,
    names: Mapping[str, str],
    choices: Choices,
    device: Device,
) -> Kernel:
    """The kernel that copies `value` into `twin`.

    Args:
        value: What is copied.
        twin: The copy; the kernel and its tunables are named after it.
        source: How `value` lies in memory.
        target: How `twin` does; of the same shape and dtype.
        names: C++ expressions of both.
        choices: Values of tunables that differ from the default.
        device: The GPU.
    """
    load = Load(name=value, dtype=source.dtype, shape=source.shape, value=value)
    return write_pointwise(
        f"{names[twin]}_copy", [f"{value} in the memory order of {twin}"], [(twin, load)],
        layouts={value: source, twin: target}, names=names, choices=choices, device=device,
    )
