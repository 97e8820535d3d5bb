// Strings whose lengths are streams of deltas: DELTA_LENGTH_BYTE_ARRAY, with all bytes behind the lengths; and DELTA_BYTE_ARRAY, where a value
// begins as the one before, and the rest of each is stored the same way behind the lengths of these beginnings.
//
// The lengths become ends, by the sums of tiles that `delta_emit` left and sums of these; what follows them knows no more of deltas. Only a value
// that has nothing of the one before is made without it, so bytes of DELTA_BYTE_ARRAY are made by a warp for each tile, from its first such value
// to the first such one past the tile. They are made where they go: without gaps between the values of a page, the output is what values
// are taken from.
#include "delta.cuh"
#include "strings.cuh"

// Bytes of a value that a warp keeps for the next one, which begins with some of them.
#define KEPT 512u

// A page, by the host.
struct Text {
    const u32 *prefixes;  // of DELTA_BYTE_ARRAY, bytes of each value that are those of the one before; else null
    u32 *lengths;         // bytes of each value in the page; of DELTA_LENGTH_BYTE_ARRAY then where they end
    u64 tiles;            // its first in the table
    u32 page;
    u32 stream;           // of the lengths; that of prefixes is the one before
};
static_assert(sizeof(Text) == 32);  // what `Texts::add` in columns/delta_strings.rs writes

// 1,024 values of a page: bytes before the first of them, and where its own are in the page.
struct TextTile {
    u32 bytes;
    u32 stored;
    u32 text;
};
static_assert(sizeof(TextTile) == 12);  // `TEXT_TILE` there

struct TextJob {
    StringJob strings;
    const Stream *streams;
    const Blocks *blocks;
    const Checkpoint *checkpoints;
    const Text *texts;
    TextTile *tiles;
    u64 text_count;
    u64 tile_count;
};
static_assert(sizeof(TextJob) == sizeof(StringJob) + 56);  // and seven numbers that `Texts::job` writes

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

// Which text each tile is of, and bytes before it, by a warp for each text; and whether the page has so many.
KERNEL_WITH(delta_text_scan, THREADS, 6)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    const Job *job = &work->strings.job;
    for (u64 index = thread_number() / LANES; index < work->text_count; index += warps) {
        const Text *text = &work->texts[index];
        const Page *page = &job->pages[text->page];
        Found *found = &job->found[text->page];
        TextTile *tiles = work->tiles + text->tiles;
        for (u32 tile = lane; tile < (page->entries + TILE - 1) / TILE; tile += LANES) tiles[tile].text = (u32)index;
        if (found->failed) continue;
        u32 count = (found->values + TILE - 1) / TILE, begin = work->blocks[text->stream].end;
        bool prefixed = text->prefixes != 0, wrong = false;
        const Checkpoint *lengths = work->checkpoints + work->streams[text->stream].tiles;
        const Checkpoint *prefixes = prefixed ? work->checkpoints + work->streams[text->stream - 1].tiles : 0;
        u64 bytes = 0, stored = 0;
        for (u32 from = 0; from < count; from += LANES) {
            u32 own = from + lane;
            bool here = own < count;
            u64 length = here ? lengths[own].before : 0, prefix = here && prefixed ? prefixes[own].before : 0;
            if (length == NEGATIVE || prefix == NEGATIVE) wrong = true;
            u64 all, sum = warp_exclusive(length + prefix, &all);
            u64 all_stored, sum_stored = warp_exclusive(length, &all_stored);
            if (here) {
                tiles[own].bytes = (u32)(bytes + sum);
                tiles[own].stored = (u32)(begin + stored + sum_stored);
            }
            bytes += all;
            stored += all_stored;
        }
        // Ends have 32 bits. Of what is wrong nobody looks at the sums.
        wrong = __any_sync(ALL_LANES, wrong) || stored > page->len - begin || bytes >> 32;
        // All lanes have looked at `failed`.
        __syncwarp();
        if (lane != 0) continue;
        Source *source = &work->strings.sources[text->page];
        source->start = prefixed ? 0 : begin;
        source->gap = 0;
        if (wrong) {
            found->failed = 1;
            report(&job->columns[page->column], page, DELTA | DELTA_TEXT);
        }
    }
}

// Where each value ends, by a warp for each tile: of DELTA_LENGTH_BYTE_ARRAY in the page; of DELTA_BYTE_ARRAY in what is made of it. Of these it
// is looked at that none begins with more than the one before has. The page has not failed then, as others look at that; its column has an error,
// for which the host gives it no room for bytes, and nobody else follows such beginnings.
KERNEL(delta_text_ends, THREADS)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    const Job *job = &work->strings.job;
    for (u64 index = thread_number() / LANES; index < work->tile_count; index += warps) {
        Part part;
        if (!open_part(work, index, part)) continue;
        const u32 *prefixes = part.text->prefixes;
        u32 *lengths = part.text->lengths;
        if (!prefixes) {
            u32 end = work->tiles[index].stored;
#pragma unroll 1
            for (u32 from = lane; from - lane < part.count; from += LANES) {
                u32 own = from < part.count ? lengths[part.first + from] : 0, sum = sum_to_lane(own);
                if (from < part.count) lengths[part.first + from] = end + sum;
                end += __shfl_sync(ALL_LANES, sum, LANES - 1);
            }
            continue;
        }
        u32 *ends = work->strings.sources[part.text->page].ends;
        u32 end = work->tiles[index].bytes, before = part.first ? prefixes[part.first - 1] + lengths[part.first - 1] : 0;
        bool wrong = false;
#pragma unroll 1
        for (u32 from = lane; from - lane < part.count; from += LANES) {
            bool here = from < part.count;
            u32 rank = part.first + from, prefix = here ? prefixes[rank] : 0, own = here ? prefix + lengths[rank] : 0;
            u32 previous = __shfl_up_sync(ALL_LANES, own, 1), sum = sum_to_lane(own);
            if (prefix > (lane ? previous : before)) wrong = true;
            if (here) ends[rank] = end + sum;
            end += __shfl_sync(ALL_LANES, sum, LANES - 1);
            before = __shfl_sync(ALL_LANES, own, LANES - 1);
        }
        if (__any_sync(ALL_LANES, wrong) && lane == 0) report(&job->columns[part.page->column], part.page, DELTA | DELTA_TEXT);
    }
}

// The byte so many lanes below, in front of the first lane that of the bytes before.
static __device__ u32 byte_below(u32 byte, u32 last, u32 distance) {
    u32 lane = threadIdx.x % LANES, both = __shfl_sync(ALL_LANES, byte | last << 8, (lane - distance) % LANES);
    return lane >= distance ? both & 0xff : both >> 8;
}

// Whether a byte of the lanes cannot be in UTF-8 behind those below, and `last`, the bytes before; as `is_wrong` tells it. What is behind the
// end of a value is zero, before which no character can be unfinished.
static __device__ bool breaks_off(u32 byte, u32 last) {
    u32 one = byte_below(byte, last, 1), two = byte_below(byte, last, 2), three = byte_below(byte, last, 3);
    if (is_part(byte) != (one >= 0xc0 || two >= 0xe0 || three >= 0xf0)) return true;
    if (byte >= 0xc0 && (byte < 0xc2 || byte > 0xf4)) return true;
    // No more bytes than are needed, no surrogates, nothing above U+10FFFF.
    return (one == 0xe0 && byte < 0xa0) || (one == 0xed && byte > 0x9f) || (one == 0xf0 && byte < 0x90) || (one == 0xf4 && byte > 0x8f);
}

// The bytes of DELTA_BYTE_ARRAY. A byte of a value is always made by the same lane, by its place there, which takes it from its own of the value
// before: from shared memory, or beyond that from the output.
KERNEL_WITH(delta_text_bytes, THREADS, 6)(const __grid_constant__ TextJob given) {
    const TextJob *work = &given;
    __shared__ u8 kept_bytes[WARPS][KEPT];
    u8 *kept = kept_bytes[threadIdx.x / LANES];
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    const Job *job = &work->strings.job;
    for (u64 index = thread_number() / LANES; index < work->tile_count; index += warps) {
        Part part;
        if (!open_part(work, index, part) || !part.text->prefixes) continue;
        const Page *page = part.page;
        const Strings *column = &work->strings.strings[page->column];
        if (!column->values) continue;
        const u32 *prefixes = part.text->prefixes, *lengths = part.text->lengths;
        u8 *output = column->values + (work->strings.before[page->tiles] - work->strings.before[column->tile]);
        bool utf8 = column->utf8, begun = false, wrong = false, over = false;
        u32 stop = part.first + part.count, begin = 0, end = work->tiles[index].bytes, from = work->tiles[index].stored;
#pragma unroll 1
        for (u32 rank = part.first; rank < part.all && !over; rank += LANES) {
            u32 own = rank + lane;
            bool here = own < part.all;
            u32 own_prefix = here ? prefixes[own] : 0, own_length = here ? lengths[own] : 0;
            u32 count = least(LANES, part.all - rank);
#pragma unroll 1
            for (u32 i = 0; i < count; i++) {
                u32 prefix = __shfl_sync(ALL_LANES, own_prefix, i), length = __shfl_sync(ALL_LANES, own_length, i), before = begin, data = from;
                begin = end;
                end += prefix + length;
                from += length;
                // What is not begun here is of a tile before; what is begun past this tile is of another one.
                if (prefix == 0) begun = rank + i < stop;
                over = !begun && rank + i + 1 >= stop;
                if (over) break;
                if (!begun) continue;
                u32 len = end - begin, last = 0, past = utf8 && len ? len + 1 : len;
#pragma unroll 1
                for (u32 at = lane; at - lane < past; at += LANES) {
                    u32 byte = 0;
                    if (at < prefix) {
                        byte = at < KEPT ? kept[at] : output[before + at];
                        output[begin + at] = (u8)byte;
                    } else if (at < len) {
                        byte = page->body[data + at - prefix];
                        output[begin + at] = (u8)byte;
                        if (at < KEPT) kept[at] = (u8)byte;
                    }
                    if (!utf8) continue;
                    if (__any_sync(ALL_LANES, (byte | last) & 0x80) && breaks_off(byte, last)) wrong = true;
                    last = byte;
                }
            }
        }
        if (wrong) report(&job->columns[page->column], page, UTF8);
    }
}
