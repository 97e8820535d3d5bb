// Walks over the runs of pages, a warp for each page: checks them all, and notes where each tile begins, so that later kernels start
// anywhere and need no checks. Where that is known from another time, a warp for each tile does it.
//
// Stage 0 finds the sections of the body and walks over the levels; stage 1, when it is known how many values each tile has,
// over dictionary indices and booleans.
#include "walk.cuh"

static __device__ u32 walk_levels(const Page *page, const Column *column, Found *found, Mark *marks, u32 tile_count) {
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
    if (!nullable || page->flags & (SLOTS | KNOWN_LEVELS)) return 0;
    u32 wrong = walk_runs(page->body, at, end, 1, page->entries, marks, tile_count, 0);
    return wrong ? LEVELS | wrong : 0;
}

static __device__ u32 walk_values(const Page *page, const Column *column, Found *found, Mark *marks, const u32 *bases, u32 tile_count) {
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
    // Without values no tile begins anywhere.
    if (page->flags & KNOWN_VALUES && count) return 0;
    u32 wrong = walk_runs(page->body, at, end, bits, count, marks, tile_count, bases);
    if (wrong) return RUNS | wrong;
    return at < end && page->body[at] ? TRAILING : 0;
}

// 8 blocks leave 64 registers to a thread. By itself the assembler takes no more than 40 to 64, by architecture, which is close to what this needs
// without a spill; and a page has but one warp, so that more warps than these 32 are seldom there to be held.
KERNEL_WITH(walk, THREADS, 8)(const __grid_constant__ Job given) {
    const Job *job = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < job->page_count; index += warps) {
        const Page *page = &job->pages[index];
        const Column *column = &job->columns[page->column];
        Found *found = &job->found[index];
        const Tiles &tiles = job->tiles;
        u32 tile_count = (page->entries + TILE - 1) / TILE, wrong;
        if (job->stage == 0) {
            for (u32 tile = lane; tile < tile_count; tile += LANES) tiles.pages[page->tiles + tile] = (u32)index;
            wrong = walk_levels(page, column, found, tiles.levels + page->tiles, tile_count);
        } else {
            if (found->failed || (page->encoding != DICTIONARY && page->encoding != RLE)) continue;
            wrong = walk_values(page, column, found, tiles.values + page->tiles, tiles.bases + page->tiles, tile_count);
        }
        __syncwarp();
        if (lane == 0) {
            found->failed = wrong != 0;
            if (wrong) report(column, page, wrong);
        }
    }
}

// As `known_levels`, of values. Behind the last one there is nothing, or padding.
static __device__ u32 known_values(const Page *page, const Found *found, const Mark *marks, u32 base, u32 count) {
    Mark mark = *marks;
    u32 after, begin = found->section + (page->encoding == RLE ? 4 : 1), end = found->end;
    if (base == found->values) return 0;
    if (base == 0 && (mark.byte != begin || mark.skip)) return MARKS;
    u32 wrong = walk_part(page->body, mark, after, end, found->bits, count);
    if (wrong) return RUNS | wrong;
    if (base + count == found->values) return after < end && page->body[after] ? TRAILING : 0;
    return mark.byte != marks[1].byte || mark.skip != marks[1].skip ? MARKS : 0;
}

// Pages of which it is known where tiles begin, in the stages of `walk`, which was there. What others make of a tile that is wrong is not taken.
KERNEL(walk_known, THREADS)(const __grid_constant__ Job given) {
    const Job *job = &given;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < job->tile_count; index += warps) {
        const Tiles &tiles = job->tiles;
        const Page *page = &job->pages[tiles.pages[index]];
        const Found *found = &job->found[tiles.pages[index]];
        u32 number = (u32)(index - page->tiles), tile_count = (page->entries + TILE - 1) / TILE, wrong = 0;
        if (found->failed) continue;
        if (job->stage == 0) {
            if (!(page->flags & KNOWN_LEVELS)) continue;
            u32 after, begin = page->v1 ? 4 : 0;
            bool is_first = number == 0, is_last = number + 1 == tile_count;
            wrong = known_levels(page->body, tiles.levels + index, is_first, is_last, begin, found->levels, 1, rows_of(page, number), after);
            if (wrong && wrong != MARKS) wrong |= LEVELS;
        } else if (page->flags & KNOWN_VALUES && (page->encoding == DICTIONARY || page->encoding == RLE)) {
            wrong = known_values(page, found, tiles.values + index, tiles.bases[index], tiles.counts[index]);
        }
        if (wrong && threadIdx.x % LANES == 0) report(&job->columns[page->column], page, wrong);
    }
}
