// Levels of 0 and 1, which become bits; and how many values come before each tile.
#include "runs.cuh"

// The levels of a tile, by a warp: a lane gets those of 32 rows.
static __device__ u32 bits_of(const Job *job, const Page *page, const Found *found, const Mark *mark, u32 rows) {
    u32 lane = threadIdx.x % LANES, at = mark->byte, skip = mark->skip, bits = 0;
    for (u32 done = 0; done < rows;) {
        Run run;
        // `walk` has been here.
        if (read_run(page->body, at, found->levels, 1, run)) break;
        u32 after = done + least(run.len - skip, rows - done);
        u32 from = most(done, lane * 32), to = least(after, lane * 32 + 32);
        if (from < to) {
            u32 part = run.value ? ALL_LANES : 0;
            if (run.packed) part = some_bits(job, page->body + run.data, (u64)skip + (from - done), to - from);
            bits |= (part & ones(to - from)) << (from - lane * 32);
        }
        done = after;
        skip = 0;
        at = (u32)(run.next < found->levels ? run.next : found->levels);
    }
    return bits;
}

// Which rows of a tile are not null, and how many.
KERNEL(rle, THREADS)(const __grid_constant__ Job given) {
    const Job *job = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < job->tile_count; index += warps) {
        const Page *page = &job->pages[job->tiles.pages[index]];
        const Found *found = &job->found[job->tiles.pages[index]];
        const Column *column = &job->columns[page->column];
        if (found->failed || !column->validity) continue;
        u32 number = (u32)(index - page->tiles), rows = rows_of(page, number);
        u64 first = page->first + (u64)number * TILE;
        u32 bits = 0;
        if (page->flags & SLOTS) {
            bits = load_bits(column->validity, first, rows);
        } else {
            bits = bits_of(job, page, found, job->tiles.levels + index, rows);
            store_bits(column->validity, first, rows, bits);
        }
        u32 count = sum_to_lane(__popc(bits));
        if (lane == LANES - 1) job->tiles.counts[index] = count;
    }
}

// Values before each tile of a page, by a block; and whether they are as many as the page says, in the header and by its length.
KERNEL(ranks, THREADS)(const __grid_constant__ Job given) {
    const Job *job = &given;
    __shared__ u32 sums[WARPS];
    for (u64 index = blockIdx.x; index < job->page_count; index += gridDim.x) {
        const Page *page = &job->pages[index];
        const Column *column = &job->columns[page->column];
        Found *found = &job->found[index];
        if (found->failed) continue;
        u32 *bases = job->tiles.bases + page->tiles, *counts = job->tiles.counts + page->tiles;
        u32 tile_count = (page->entries + TILE - 1) / TILE, before = 0;
        for (u32 begin = 0; begin < tile_count; begin += THREADS) {
            u32 own = begin + threadIdx.x, count = 0;
            if (own < tile_count) {
                if (!column->validity) counts[own] = rows_of(page, own);
                count = counts[own];
            }
            u32 to_here = sum_to_lane(count);
            if (threadIdx.x % LANES == LANES - 1) sums[threadIdx.x / LANES] = to_here;
            __syncthreads();
            u32 all = 0;
            for (u32 warp = 0; warp < WARPS; warp++) {
                if (warp == threadIdx.x / LANES) to_here += all;
                all += sums[warp];
            }
            if (own < tile_count) bases[own] = before + to_here - count;
            before += all;
            __syncthreads();
        }
        // Nobody looks at `failed` of this page any more.
        __syncthreads();
        if (threadIdx.x != 0) continue;
        found->values = before;
        u64 len = page->len - found->section;
        u32 wrong = 0;
        if (page->nulls != ALL_LANES && page->nulls != page->entries - before)
            wrong = NULLS;
        else if (page->encoding == SPLIT || (page->encoding == PLAIN && column->width))
            wrong = len == (u64)before * column->width ? 0 : VALUES_LENGTH;
        else if (page->encoding == PLAIN && column->convert != TEXT)
            wrong = len >= (before + 7) / 8 ? 0 : VALUES_LENGTH;
        if (wrong) {
            found->failed = 1;
            report(column, page, wrong);
        } else {
            atomicAdd(column->nulls, (u64)(page->entries - before));
        }
    }
}
