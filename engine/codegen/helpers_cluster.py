"""Snippets for blocks that run together as a cluster (CUDA C++ Programming Guide, thread block clusters)."""

from __future__ import annotations

CLUSTER_SNIPPETS: dict[str, tuple[tuple[str, ...], str]] = {
    "cluster_reduce": ((), """\
// Combines what the blocks of a cluster have; every thread of all of them gets the result.
template <int kBlocks, class Op, class T>
__device__ __forceinline__ T cluster_reduce(T value) {
    __shared__ T of_block;
    auto const cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) {
        of_block = value;
    }
    cluster.sync();
    value = *cluster.map_shared_rank(&of_block, 0);
#pragma unroll
    for (int block = 1; block < kBlocks; ++block) {
        value = Op::combine(value, *cluster.map_shared_rank(&of_block, block));
    }
    cluster.sync();  // All have read: it may be written again, and its block may end.
    return value;
}
"""),
    "launch_cluster": ((), """\
// Launches a kernel whose blocks keep a row in their shared memory, in clusters of blocks that read each other's.
template <typename... Parameters>
static void launch_cluster(void (*kernel)(Parameters...), int cluster, int grid, int threads, int shared_bytes,
                           cudaStream_t stream, Parameters... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    // The check after the launch sees an error of either.
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    cudaLaunchKernelEx(&config, kernel, arguments...);
}
"""),
}
