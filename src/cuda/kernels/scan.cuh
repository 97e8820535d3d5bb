// Sums over a warp and over a block.
#pragma once
#include "types.cuh"

// The sum of the values of the lanes below, and in `total` that of all.
static __device__ u64 warp_exclusive(u64 value, u64 *total) {
    u32 lane = threadIdx.x % LANES;
    u64 sum = value;
    for (u32 distance = 1; distance < LANES; distance *= 2) {
        u64 below = __shfl_up_sync(ALL_LANES, sum, distance);
        if (lane >= distance) sum += below;
    }
    *total = __shfl_sync(ALL_LANES, sum, LANES - 1);
    return sum - value;
}

// The same over a block of WARPS warps, all of whose threads call it. `room` is shared, and may be used again after the next barrier.
template <u32 WARPS>
static __device__ u64 block_exclusive(u64 value, u64 *room, u64 *total) {
    u64 of_warp;
    u64 sum = warp_exclusive(value, &of_warp);
    u32 warp = threadIdx.x / LANES;
    if (threadIdx.x % LANES == 0) room[warp] = of_warp;
    __syncthreads();
    u64 before = 0, all = 0;
    for (u32 other = 0; other < WARPS; other++) {
        if (other < warp) before += room[other];
        all += room[other];
    }
    __syncthreads();
    *total = all;
    return before + sum;
}
