// Walks over the runs of pages, a warp for each page: checks them all, and notes where each tile begins, so that later kernels start
// anywhere and need no checks.
//
// Stage 0 finds the sections of the body and walks over the levels; stage 1, when it is known how many values each tile has,
// over dictionary indices and booleans.
#include "walk.cuh"

static __device__ u32 walk_levels(const Page *page, const Column *column, Found *found, Tile *tiles, u32 tile_count) {
    bool nullable = column->validity != 0;
    u32 at = 0, end = 0;
    if (!page->v1) {
        if (page->def_len > page->len) return LEVELS_LENGTH;
        end = page->def_len;
    } else if (nullable) {
        if (page->len < 4) return LEVELS_LENGTH;
        u32 len = length_at(page->body);
        if (len > page->len - 4) return LEVELS_LENGTH;
        at = 4;
        end = 4 + len;
    }
    if (threadIdx.x % LANES == 0) {
        found->section = end;
        found->levels = end;
    }
    if (!nullable || page->flags & SLOTS) return 0;
    u32 wrong = walk_runs(page->body, at, end, 1, page->entries, tiles, tile_count, true);
    return wrong ? LEVELS | wrong : 0;
}

static __device__ u32 walk_values(const Page *page, const Column *column, Found *found, Tile *tiles, u32 tile_count) {
    u32 at = found->section, end = page->len, bits = 1, count = found->values;
    if (page->encoding == RLE) {
        if (end - at < 4) return VALUES_LENGTH;
        u32 len = length_at(page->body + at);
        at += 4;
        if (len > end - at) return VALUES_LENGTH;
        end = at + len;
    } else {
        if (at == end) return BIT_WIDTH;
        bits = page->body[at++];
        // Indices that stay have to fit where they go.
        if (bits > 32 || (column->convert == INDICES && bits > column->unit * 8)) return BIT_WIDTH;
    }
    if (threadIdx.x % LANES == 0) {
        found->bits = bits;
        found->end = end;
    }
    u32 wrong = walk_runs(page->body, at, end, bits, count, tiles, tile_count, false);
    if (wrong) return RUNS | wrong;
    return at < end && page->body[at] ? TRAILING : 0;
}

KERNEL(walk, THREADS)(const Job *job) {
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < job->page_count; index += warps) {
        const Page *page = &job->pages[index];
        const Column *column = &job->columns[page->column];
        Found *found = &job->found[index];
        Tile *tiles = job->tiles + page->tiles;
        u32 tile_count = (page->entries + TILE - 1) / TILE, wrong;
        if (job->stage == 0) {
            for (u32 tile = lane; tile < tile_count; tile += LANES) tiles[tile].page = (u32)index;
            wrong = walk_levels(page, column, found, tiles, tile_count);
        } else {
            if (found->failed || (page->encoding != DICTIONARY && page->encoding != RLE)) continue;
            wrong = walk_values(page, column, found, tiles, tile_count);
        }
        __syncwarp();
        if (lane == 0) {
            found->failed = wrong != 0;
            if (wrong) report(column, page, wrong);
        }
    }
}
