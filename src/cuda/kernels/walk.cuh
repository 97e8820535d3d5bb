// Walks over runs by a warp. Where a run begins is only known from the one before. But writers make packed runs of one length, so each lane
// looks at where its run would begin if all were as long as the last, and as many as are, are taken at once.
#pragma once
#include "runs.cuh"

// Takes `count` values of the runs from `at` to `end` of the body; `at` becomes where they end. Gives what is wrong, or 0, the same in
// all lanes.
static __device__ u32 walk_runs(const u8 *body, u32 &at, u32 end, u32 bits, u32 count, Tile *tiles, u32 tile_count, bool levels) {
    u32 lane = threadIdx.x % LANES;
    u32 value = 0, stride = 0, tile = 0, base = 0;
    while (value < count) {
        u64 place = at + (u64)stride * lane;
        Run run = {};
        u32 wrong = END;
        if (place < end) wrong = read_run(body, (u32)place, end, bits, run);
        // The last run may have more values than are wanted, and end with the last of them.
        if (!wrong && run.packed) {
            u64 wanted = least(run.len, count - value);
            if ((wanted * bits + 7) / 8 > end - run.data) wrong = RUN_BYTES;
        }
        u32 first_wrong = __shfl_sync(ALL_LANES, wrong, 0);
        if (first_wrong) return first_wrong;
        bool whole = !wrong && run.next <= end && (u64)run.len * (lane + 1) <= count - value;
        u32 size = wrong ? 0 : (u32)((run.next < end ? run.next : end) - place);
        u32 len = __shfl_sync(ALL_LANES, run.len, 0), first_size = __shfl_sync(ALL_LANES, size, 0);
        bool same = whole && run.len == len && size == first_size && stride == first_size;
        u32 others = __ballot_sync(ALL_LANES, !same);
        u32 runs = most(1, others ? __ffs(others) - 1 : LANES);
        u32 after = (u64)runs * len < count - value ? value + runs * len : count;
        while (base < after && tile < tile_count) {
            u32 own = tile + lane, begin = 0;
            bool here = own < tile_count;
            if (here) {
                begin = levels ? own * TILE : tiles[own].base;
                here = begin < after;
            }
            if (here) {
                u32 run_before = (begin - value) / len;
                u32 byte = at + run_before * first_size, skip = begin - value - run_before * len;
                if (levels) {
                    tiles[own].level_byte = byte;
                    tiles[own].level_skip = skip;
                } else {
                    tiles[own].value_byte = byte;
                    tiles[own].value_skip = skip;
                }
            }
            tile += __popc(__ballot_sync(ALL_LANES, here));
            if (tile < tile_count) base = levels ? tile * TILE : tiles[tile].base;
        }
        value = after;
        at += runs * first_size;
        stride = first_size;
    }
    return 0;
}

static __device__ u32 length_at(const u8 *bytes) {
    return bytes[0] | (u32)bytes[1] << 8 | (u32)bytes[2] << 16 | (u32)bytes[3] << 24;
}
