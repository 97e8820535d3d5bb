// Walks over runs by a warp. Where a run begins is only known from the one before. But writers make packed runs of one length, so each lane
// looks at where its run would begin if all were as long as the last, and as many as are, are taken at once.
#pragma once
#include "runs.cuh"

// The runs at `at`, of which at least one is wanted, and `left` values at most: how many are alike, how long each is, in values and in bytes.
// `stride` is what the one before had. Gives what is wrong, or 0; all of it the same in all lanes.
static __device__ u32 alike_runs(const u8 *body, u32 at, u32 stride, u32 end, u32 bits, u32 left, u32 &runs, u32 &len, u32 &size) {
    u32 lane = threadIdx.x % LANES;
    u64 place = at + (u64)stride * lane;
    Run run = {};
    u32 wrong = END;
    if (place < end) wrong = read_run(body, (u32)place, end, bits, run);
    // The last run may have more values than are wanted, and end with the last of them.
    if (!wrong && run.packed) {
        u64 wanted = least(run.len, left);
        if ((wanted * bits + 7) / 8 > end - run.data) wrong = RUN_BYTES;
    }
    u32 first_wrong = __shfl_sync(ALL_LANES, wrong, 0);
    if (first_wrong) return first_wrong;
    bool whole = !wrong && run.next <= end && (u64)run.len * (lane + 1) <= left;
    u32 own = wrong ? 0 : (u32)((run.next < end ? run.next : end) - place);
    len = __shfl_sync(ALL_LANES, run.len, 0);
    size = __shfl_sync(ALL_LANES, own, 0);
    bool same = whole && run.len == len && own == size && stride == size;
    u32 others = __ballot_sync(ALL_LANES, !same);
    runs = most(1, others ? __ffs(others) - 1 : LANES);
    return 0;
}

// Takes `count` values of the runs from `at` to `end` of the body; `at` becomes where they end. Notes where each tile begins, of which `bases` are
// the values before it, or there are none, as of levels: all tiles have as many of these. Gives what is wrong, or 0, the same in all lanes.
static __device__ u32 walk_runs(const u8 *body, u32 &at, u32 end, u32 bits, u32 count, Mark *marks, u32 tile_count, const u32 *bases) {
    u32 lane = threadIdx.x % LANES;
    u32 value = 0, stride = 0, tile = 0, base = 0;
    while (value < count) {
        u32 runs, len, size;
        u32 wrong = alike_runs(body, at, stride, end, bits, count - value, runs, len, size);
        if (wrong) return wrong;
        u32 after = (u64)runs * len < count - value ? value + runs * len : count;
        while (base < after && tile < tile_count) {
            u32 own = tile + lane, begin = 0;
            bool here = own < tile_count;
            if (here) {
                begin = bases ? bases[own] : own * TILE;
                here = begin < after;
            }
            if (here) {
                u32 run_before = (begin - value) / len;
                u32 byte = at + run_before * size, skip = begin - value - run_before * len;
                marks[own].byte = byte;
                marks[own].skip = skip;
            }
            tile += __popc(__ballot_sync(ALL_LANES, here));
            if (tile < tile_count) base = bases ? bases[tile] : tile * TILE;
        }
        value = after;
        at += runs * size;
        stride = size;
    }
    return 0;
}

// Goes over the `count` values from `mark` on, as `walk_runs` does over all; `mark` becomes where the next one is, and `after` where the run
// after the last of them begins. Which place `mark` is, it is not asked.
static __device__ u32 walk_part(const u8 *body, Mark &mark, u32 &after, u32 end, u32 bits, u32 count) {
    u32 skip = mark.skip, left = skip + count, stride = 0;
    after = mark.byte;
    if (left < count) return RUN_LENGTH;
    while (left > 0) {
        u32 runs, len, size;
        u32 wrong = alike_runs(body, after, stride, end, bits, left, runs, len, size);
        if (wrong) return wrong;
        // Else a mark that is wrong would have every tile go over all the rest.
        if (skip && skip >= len) return MARKS;
        skip = 0;
        u64 all = (u64)runs * len;
        u32 taken = all < left ? (u32)all : left, whole = taken / len;
        mark.byte = after + whole * size;
        mark.skip = taken - whole * len;
        left -= taken;
        after += runs * size;
        stride = size;
    }
    return 0;
}

// What is wrong with the levels of a tile of which it is known from another time where it begins: they have to begin there, in the first tile at
// `begin`, and end where those of the next one begin. So all of them are those that a walk from `begin` on finds.
static __device__ u32 known_levels(const u8 *body, const Mark *marks, bool is_first, bool is_last, u32 begin, u32 end, u32 bits, u32 count,
                                   u32 &after) {
    Mark mark = *marks;
    after = end;
    if (is_first && (mark.byte != begin || mark.skip)) return MARKS;
    u32 wrong = walk_part(body, mark, after, end, bits, count);
    if (wrong) return wrong;
    return !is_last && (mark.byte != marks[1].byte || mark.skip != marks[1].skip) ? MARKS : 0;
}

static __device__ u32 length_at(const u8 *bytes) {
    return bytes[0] | (u32)bytes[1] << 8 | (u32)bytes[2] << 16 | (u32)bytes[3] << 24;
}
