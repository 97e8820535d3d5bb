// What a block knows of the rows of a tile: which of them have a value, and dictionary indices.
#pragma once
#include "runs.cuh"

// What a block knows of its tile.
struct Rows {
    u32 valid[LANES];   // a bit for each row
    u32 before[LANES];  // values before the rows of each word
    u32 values[TILE];   // dictionary indices, or booleans, by rank in the tile
};

// Unpacks the values of tile `index`, by all threads of the block.
static __device__ void unpack(const Job *job, const Page *page, const Found *found, u64 index, u32 *values) {
    const Mark *mark = job->tiles.values + index;
    u32 at = mark->byte, skip = mark->skip, count = job->tiles.counts[index], done = 0;
    while (done < count) {
        Run run;
        // `walk` has been here.
        if (read_run(page->body, at, found->end, found->bits, run)) break;
        u32 take = least(run.len - skip, count - done);
        for (u32 i = threadIdx.x; i < take; i += THREADS) {
            u32 value = run.value;
            if (run.packed) value = some_bits(job, page->body + run.data, (u64)(skip + i) * found->bits, found->bits);
            values[done + i] = value;
        }
        done += take;
        skip = 0;
        at = (u32)(run.next < found->end ? run.next : found->end);
    }
    // Of what `walk_known` found wrong, where nobody takes the page any more.
    for (u32 i = done + threadIdx.x; i < count; i += THREADS) values[i] = 0;
}

// Fills `Rows` for a tile. The block is in step before, and after.
static __device__ void open_tile(const Job *job, const Page *page, const Column *column, const Found *found, u64 index, u64 first,
                                 u32 rows, Rows &out) {
    if (column->validity && threadIdx.x < LANES) {
        u32 bits = load_bits(column->validity, first, rows), count = __popc(bits);
        out.valid[threadIdx.x] = bits;
        out.before[threadIdx.x] = sum_to_lane(count) - count;
    }
    if (page->encoding == DICTIONARY || page->encoding == RLE) unpack(job, page, found, index, out.values);
    __syncthreads();
}

// The rank of a row in its tile; all bits if it is null.
static __device__ u32 rank_of(const Column *column, const Rows &rows, u32 row) {
    if (!column->validity) return row;
    u32 bits = rows.valid[row / 32], bit = row % 32;
    return bits >> bit & 1 ? rows.before[row / 32] + __popc(bits & ones(bit)) : ALL_LANES;
}
