// Walks over the runs of pages, a warp for each page: checks them all, and notes where each tile begins, so that later kernels start
// anywhere and need no checks.
//
// Stage 0 finds the sections of the body and walks over the levels; stage 1, when it is known how many values each tile has,
// over dictionary indices and booleans. Where a run begins is only known from the one before. But writers make packed runs of
// one length, so each lane looks at where its run would begin if all were as long as the last, and as many as are, are taken at once.
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
    if (!nullable) return 0;
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
