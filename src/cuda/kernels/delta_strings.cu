// Strings whose lengths are streams of deltas: DELTA_LENGTH_BYTE_ARRAY, with all bytes behind the lengths; and DELTA_BYTE_ARRAY, where a value
// begins as the one before, and the rest of each is stored the same way behind the lengths of these beginnings.
//
// The lengths become ends, by sums of tiles and sums of these; what follows them knows no more of deltas. Only a value that has nothing of the one
// before is made without it, so bytes of DELTA_BYTE_ARRAY are made by a warp for each tile, from its first such value to the first such
// one past the tile. They are made where they go: without gaps between the values of a page, the output is what values are taken from.
#include "delta.cuh"
#include "strings.cuh"

// A page, by the host.
struct Text {
    const u32 *prefixes;  // of DELTA_BYTE_ARRAY, bytes of each value that are those of the one before; else null
    u32 *stored;          // bytes of each value in the page; then where they end
    u64 tiles;            // its first in the table
    u32 page;
    u32 stream;           // of its streams the last
};
static_assert(sizeof(Text) == 32);  // what `Texts::add` in columns/delta_strings.rs writes

// 1,024 values of a page: bytes before the first of them, and bytes in the page.
struct TextTile {
    u64 bytes;
    u64 stored;
    u32 text;
    u32 wrong;
};
static_assert(sizeof(TextTile) == 24);  // `TEXT_TILE` there

struct TextJob {
    StringJob strings;
    const Blocks *blocks;
    const Text *texts;
    TextTile *tiles;
    u64 text_count;
    u64 tile_count;
};
static_assert(sizeof(TextJob) == 176);  // `StringJob`, and five numbers that `Texts::job` writes

// What a warp knows of a tile.
struct Part {
    const Text *text;
    const Page *page;
    u32 first;  // value
    u32 count;
    u32 all;  // values of the page
};

// False: there is nothing to do.
static __device__ bool open_part(const TextJob *work, u64 index, Part &part) {
    const Job *job = &work->strings.job;
    part.text = &work->texts[work->tiles[index].text];
    part.page = &job->pages[part.text->page];
    const Found *found = &job->found[part.text->page];
    if (found->failed) return false;
    part.first = (u32)(index - part.text->tiles) * TILE;
    part.all = found->values;
    if (part.first >= part.all) return false;
    part.count = least(part.all - part.first, TILE);
    return true;
}

// Which text each tile is of, and nothing else: by a warp for each text.
KERNEL(delta_text_tiles, THREADS)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->text_count; index += warps) {
        const Text *text = &work->texts[index];
        u32 tiles = (work->strings.job.pages[text->page].entries + TILE - 1) / TILE;
        for (u32 tile = threadIdx.x % LANES; tile < tiles; tile += LANES) work->tiles[text->tiles + tile].text = (u32)index;
    }
}

// Bytes of each tile, by a warp; and whether there can be such values.
KERNEL(delta_text_sums, THREADS)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->tile_count; index += warps) {
        Part part;
        if (!open_part(work, index, part)) continue;
        const u32 *prefixes = part.text->prefixes, *stored = part.text->stored;
        u64 bytes = 0, in_page = 0;
        bool wrong = false;
#pragma unroll 1
        for (u32 i = lane; i < part.count; i += LANES) {
            u32 rank = part.first + i, own = stored[rank], prefix = 0;
            if (prefixes) {
                prefix = prefixes[rank];
                u64 before = rank ? (u64)prefixes[rank - 1] + stored[rank - 1] : 0;
                if (prefix > before) wrong = true;
            }
            if ((own | prefix) >> 31) wrong = true;
            bytes += (u64)own + prefix;
            in_page += own;
        }
        for (u32 distance = LANES / 2; distance > 0; distance /= 2) {
            bytes += __shfl_xor_sync(ALL_LANES, bytes, distance);
            in_page += __shfl_xor_sync(ALL_LANES, in_page, distance);
        }
        wrong = __any_sync(ALL_LANES, wrong);
        if (lane != 0) continue;
        TextTile *tile = &work->tiles[index];
        tile->bytes = bytes;
        tile->stored = in_page;
        tile->wrong = wrong;
    }
}

// Bytes before each tile of a page, by a warp; and whether the page has so many.
KERNEL_WITH(delta_text_scan, THREADS, 6)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    const Job *job = &work->strings.job;
    for (u64 index = thread_number() / LANES; index < work->text_count; index += warps) {
        const Text *text = &work->texts[index];
        const Page *page = &job->pages[text->page];
        Found *found = &job->found[text->page];
        if (found->failed) continue;
        u32 count = (found->values + TILE - 1) / TILE, begin = work->blocks[text->stream].end;
        u64 bytes = 0, stored = 0;
        bool wrong = false;
        for (u32 from = 0; from < count; from += LANES) {
            TextTile *own = work->tiles + text->tiles + from + lane;
            bool here = from + lane < count;
            if (here && own->wrong) wrong = true;
            u64 all, sum = warp_exclusive(here ? own->bytes : 0, &all);
            u64 all_stored, sum_stored = warp_exclusive(here ? own->stored : 0, &all_stored);
            if (here) {
                own->bytes = bytes + sum;
                own->stored = begin + stored + sum_stored;
            }
            bytes += all;
            stored += all_stored;
        }
        // Ends have 32 bits.
        wrong = __any_sync(ALL_LANES, wrong) || stored > page->len - begin || bytes >> 32;
        // All lanes have looked at `failed`.
        __syncwarp();
        if (lane != 0) continue;
        Source *source = &work->strings.sources[text->page];
        source->start = text->prefixes ? 0 : begin;
        source->gap = 0;
        if (wrong) {
            found->failed = 1;
            report(&job->columns[page->column], page, DELTA | DELTA_TEXT);
        }
    }
}

// Where each value ends, by a warp for each tile: of DELTA_LENGTH_BYTE_ARRAY in the page; of DELTA_BYTE_ARRAY in what is made of it, and its
// stored bytes in the page.
KERNEL(delta_text_ends, THREADS)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->tile_count; index += warps) {
        Part part;
        if (!open_part(work, index, part)) continue;
        const u32 *prefixes = part.text->prefixes;
        u32 *stored = part.text->stored, *ends = work->strings.sources[part.text->page].ends;
        u32 bytes = (u32)work->tiles[index].bytes, in_page = (u32)work->tiles[index].stored;
#pragma unroll 1
        for (u32 from = 0; from < part.count; from += LANES) {
            u32 rank = part.first + from + lane;
            bool here = from + lane < part.count;
            u32 own = here ? stored[rank] : 0;
            u32 sum = sum_to_lane(own);
            if (here) stored[rank] = in_page + sum;
            in_page += __shfl_sync(ALL_LANES, sum, LANES - 1);
            if (!prefixes) continue;
            u32 whole = here ? own + prefixes[rank] : 0;
            sum = sum_to_lane(whole);
            if (here) ends[rank] = bytes + sum;
            bytes += __shfl_sync(ALL_LANES, sum, LANES - 1);
        }
    }
}

// The bytes of DELTA_BYTE_ARRAY.
KERNEL_WITH(delta_text_bytes, THREADS, 6)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    const Job *job = &work->strings.job;
    for (u64 index = thread_number() / LANES; index < work->tile_count; index += warps) {
        Part part;
        if (!open_part(work, index, part) || !part.text->prefixes) continue;
        const Page *page = part.page;
        const Strings *column = &work->strings.strings[page->column];
        if (!column->values) continue;
        const u32 *prefixes = part.text->prefixes, *stored = part.text->stored, *ends = work->strings.sources[part.text->page].ends;
        u8 *output = column->values + (work->strings.before[page->tiles] - work->strings.before[column->tile]);
        u32 stop = part.first + part.count, begin = 0, end = 0, from = 0;
        bool begun = false, wrong = false, over = false;
        if (part.first) {
            end = ends[part.first - 1];
            from = stored[part.first - 1];
        } else {
            from = work->blocks[part.text->stream].end;
        }
#pragma unroll 1
        for (u32 rank = part.first; rank < part.all && !over; rank += LANES) {
            u32 own = rank + lane;
            bool here = own < part.all;
            u32 own_prefix = here ? prefixes[own] : 0, own_end = here ? ends[own] : 0, own_stored = here ? stored[own] : 0;
            u32 count = least(LANES, part.all - rank);
#pragma unroll 1
            for (u32 i = 0; i < count; i++) {
                u32 prefix = __shfl_sync(ALL_LANES, own_prefix, i), before = begin;
                begin = end;
                end = __shfl_sync(ALL_LANES, own_end, i);
                u32 data = from;
                from = __shfl_sync(ALL_LANES, own_stored, i);
                // What is not begun here is of a tile before; what is begun past this tile is of another one.
                if (prefix == 0) begun = rank + i < stop;
                over = !begun && rank + i + 1 >= stop;
                if (over) break;
                if (!begun) continue;
                u32 len = end - begin;
#pragma unroll 1
                for (u32 at = lane; at < len; at += LANES)
                    output[begin + at] = at < prefix ? output[before + at] : page->body[data + at - prefix];
                __syncwarp();
                if (!column->utf8) continue;
#pragma unroll 1
                for (u32 at = lane; at < len; at += LANES)
                    if (output[begin + at] >= 0x80 && is_wrong(output + begin, len, at)) wrong = true;
            }
        }
        if (wrong) report(&job->columns[page->column], page, UTF8);
    }
}
