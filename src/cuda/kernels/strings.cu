// Values of any length: where each ends on its page, then offsets of slots, then bytes.
//
// For each way in which values are stored there is a kernel that finds where they end (`Source`); the rest knows nothing of it. A
// dictionary page is a page of values like others, of a column that comes out only if it was asked for.
//
// The bytes of a tile of slots are counted, summed over tiles, and then each slot knows where its bytes go and where they come from. They are
// copied by parts of the output, so that one long value is the work of many blocks.
#include "scan.cuh"
// `scan.cuh` has a name of its own for what is a macro from here on.
#include "rows.cuh"
#include "strings.cuh"

#define WINDOW 128u  // words of a page that a warp looks at together
#define CHUNK 8192u  // bytes of output that a block copies

// Without a least number of blocks the assemblers aim at more of them than registers suffice for, and spill.
#define WIDE_KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, 6) name

// The aligned word at `address`. Bytes outside of the arena are zero, and not read, if others of the word are in it; what is all outside
// is other memory of ours.
static __device__ u32 word_at(const Job *job, u64 address) {
    if (address + 4 > job->begin && address < job->end && (address < job->floor || address + 4 > job->ceiling))
        return (u32)at_the_edge(job, address);
    return *(const u32 *)address;
}

// Follows the lengths of `count` PLAIN values from `at` to `end` of the body. Gives whether something is wrong, the same in all lanes.
//
// Each length is known only from the one before. All lanes follow them through the same words, which they loaded together; where values
// are longer than these, they load the next length alone.
static __device__ bool walk_lengths(const Job *job, const u8 *body, u32 at, u32 end, u32 count, u32 *ends, u32 *window) {
    u32 lane = threadIdx.x % LANES, done = 0, own = 0;
    bool wide = true;
    while (done < count) {
        u64 first = (u64)(body + at) & ~3ull, stop = (u64)(body + end);
        u32 begin = at, skew = (u32)((u64)(body + at) & 3), words = wide ? WINDOW : 2, before = done;
#pragma unroll 1
        for (u32 i = lane; i < words; i += LANES) window[i] = first + i * 4 < stop ? word_at(job, first + i * 4) : 0;
        __syncwarp();
#pragma unroll 1
        while (done < count) {
            u32 place = at - begin + skew;
            if (place + 4 > words * 4) break;
            if (end - at < 4) return true;
            // The last word has no next one, and no bits of it are wanted.
            u32 next = least(place / 4 + 1, words - 1);
            u32 len = __funnelshift_r(window[place / 4], window[next], place % 4 * 8);
            if (len > end - at - 4) return true;
            at += 4 + len;
            if (done % LANES == lane) own = at;
            done++;
            if (done % LANES == 0) ends[done - LANES + lane] = own;
        }
        __syncwarp();
        wide = wide ? done - before > 1 : at - begin < WINDOW * 2;
    }
    if (lane < done % LANES) ends[done / LANES * LANES + lane] = own;
    return at != end;
}

// PLAIN pages, a warp for each.
WIDE_KERNEL(strings_walk)(const __grid_constant__ StringJob given) {
    const StringJob *strings = &given;
    __shared__ u32 windows[WARPS][WINDOW];
    const Job *job = &strings->job;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < job->page_count; index += warps) {
        const Page *page = &job->pages[index];
        const Column *column = &job->columns[page->column];
        Found *found = &job->found[index];
        if (!is_text(column) || page->encoding != PLAIN || found->failed) continue;
        Source *source = &strings->sources[index];
        if (page->flags & KNOWN_VALUES && found->values) {
            if (threadIdx.x % LANES != 0) continue;
            source->start = found->section;
            // There is no room for more ends than lengths fit.
            if (found->values > (page->len - found->section) / 4) {
                found->failed = 1;
                report(column, page, VALUES_LENGTH);
            }
            continue;
        }
        bool wrong = walk_lengths(job, page->body, found->section, page->len, found->values, source->ends,
                                  windows[threadIdx.x / LANES]);
        __syncwarp();
        if (threadIdx.x % LANES != 0) continue;
        source->start = found->section;
        if (wrong) {
            found->failed = 1;
            // Pages of entries have no number among the others.
            bool entries = page->number == ALL_LANES;
            if (entries)
                atomicMin(column->error, (u64)DICTIONARY_LENGTH);
            else
                report(column, page, VALUES_LENGTH);
        }
    }
}

// PLAIN pages of which it is known where the values of each tile begin, a warp for each tile. They have to end where those of the next one
// begin, so that all are those that a walk from the first one on finds.
WIDE_KERNEL(strings_known)(const __grid_constant__ StringJob given) {
    const StringJob *strings = &given;
    __shared__ u32 windows[WARPS][WINDOW];
    const Job *job = &strings->job;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < job->tile_count; index += warps) {
        u32 of = job->tiles.pages[index];
        const Page *page = &job->pages[of];
        const Column *column = &job->columns[page->column];
        const Found *found = &job->found[of];
        if (!is_text(column) || page->encoding != PLAIN || found->failed || !(page->flags & KNOWN_VALUES)) continue;
        const Mark *mark = job->tiles.values + index;
        u32 base = job->tiles.bases[index], count = job->tiles.counts[index], at = mark->byte;
        if (base == found->values) continue;
        bool is_last = base + count == found->values;
        u32 end = is_last ? page->len : mark[1].byte;
        u32 *ends = strings->sources[of].ends + base;
        bool wrong = (base == 0 && at != found->section) || at > end || end > page->len;
        if (!wrong) wrong = walk_lengths(job, page->body, at, end, count, ends, windows[threadIdx.x / LANES]);
        __syncwarp();
        if (!wrong) continue;
        // There are ends, whatever they are.
        for (u32 i = threadIdx.x % LANES; i < count; i += LANES) ends[i] = found->section;
        if (threadIdx.x % LANES == 0) report(column, page, VALUES_LENGTH);
    }
}

// Where the bytes of a value are, from the base of its source on, and how many.
struct Place {
    u32 from;
    u32 len;
};

static __device__ u32 end_before(const Source *source, u32 rank) { return rank ? source->ends[rank - 1] : source->start; }

static __device__ Place place_of(const Source *source, u32 rank) {
    u32 from = end_before(source, rank) + source->gap;
    Place place = {from, source->ends[rank] - from};
    return place;
}

// The source of the values of a page, for indices the one of the entries; null if that has failed.
static __device__ const Source *source_of(const StringJob *strings, const Page *page, u64 index) {
    if (page->encoding != DICTIONARY) return &strings->sources[index];
    u32 entries = strings->strings[page->column].dictionary;
    return strings->job.found[entries].failed ? 0 : &strings->sources[entries];
}

// Bytes of each tile, by a block; and whether the dictionary has all entries.
WIDE_KERNEL(strings_count)(const __grid_constant__ StringJob given) {
    const StringJob *strings = &given;
    __shared__ u32 indices[TILE];
    __shared__ u64 room[WARPS];
    const Job *job = &strings->job;
    for (u64 index = blockIdx.x; index < job->tile_count; index += gridDim.x) {
        u32 of = job->tiles.pages[index];
        const Page *page = &job->pages[of];
        const Column *column = &job->columns[page->column];
        const Found *found = &job->found[of];
        if (!is_text(column) || found->failed || strings->strings[page->column].decimals) continue;
        const Source *source = source_of(strings, page, of);
        if (!source) continue;
        u32 base = job->tiles.bases[index], count = job->tiles.counts[index];
        if (page->encoding != DICTIONARY) {
            // All bytes between the ends, without the gaps.
            u32 begin = end_before(source, base), bytes = end_before(source, base + count) - begin - count * source->gap;
            if (threadIdx.x == 0) {
                strings->bytes[index] = bytes;
                // For another time.
                if (page->encoding == PLAIN && !(page->flags & KNOWN_VALUES)) job->tiles.values[index].byte = begin;
            }
            continue;
        }
        __syncthreads();
        unpack(job, page, found, index, indices);
        __syncthreads();
        u64 sum = 0, total;
        for (u32 rank = threadIdx.x; rank < count; rank += THREADS) {
            u32 entry = indices[rank];
            if (entry < column->entries)
                sum += place_of(source, entry).len;
            else
                report(column, page, INDEX);
        }
        block_exclusive<WARPS>(sum, room, &total);
        if (threadIdx.x == 0) strings->bytes[index] = total;
    }
}

static __device__ void store_offset(const Strings *text, u64 slot, u64 offset) {
    if (text->large)
        ((u64 *)text->offsets)[slot] = offset;
    else
        ((u32 *)text->offsets)[slot] = (u32)offset;
}

static __device__ u64 load_offset(const Strings *text, u64 slot) {
    return text->large ? ((const u64 *)text->offsets)[slot] : ((const u32 *)text->offsets)[slot];
}

// Offsets of the slots of each tile, and where their bytes are, by a block.
WIDE_KERNEL(strings_place)(const __grid_constant__ StringJob given) {
    const StringJob *strings = &given;
    __shared__ Rows rows;
    __shared__ u64 room[WARPS];
    const Job *job = &strings->job;
    for (u64 index = blockIdx.x; index < job->tile_count; index += gridDim.x) {
        u32 of = job->tiles.pages[index];
        const Page *page = &job->pages[of];
        const Column *column = &job->columns[page->column];
        const Found *found = &job->found[of];
        const Strings *text = &strings->strings[page->column];
        if (!is_text(column) || found->failed || text->decimals) continue;
        const Source *source = source_of(strings, page, of);
        if (!source) continue;
        u32 number = (u32)(index - page->tiles), count = rows_of(page, number);
        u64 first = page->first + (u64)number * TILE, zero = strings->before[text->tile];
        u32 base = job->tiles.bases[index];
        u64 offset = strings->before[index] - zero;
        __syncthreads();
        open_tile(job, page, column, found, index, first, count, rows);
        bool packed = page->encoding == DICTIONARY;
        u32 begin = packed ? 0 : end_before(source, base);
#pragma unroll 1
        for (u32 round = 0; round < count; round += THREADS) {
            u32 slot = round + threadIdx.x;
            bool here = slot < count;
            if (!packed) {
                if (!here) continue;
                u32 rank = slot;
                if (column->validity) rank = rows.before[slot / 32] + __popc(rows.valid[slot / 32] & ones(slot % 32));
                u32 end = end_before(source, base + rank);
                // `delta_text_bytes` knows itself where these are.
                if (page->encoding != DELTA_BYTES) text->places[first + slot] = end + source->gap;
                store_offset(text, first + slot, offset + (end - begin - rank * source->gap));
                continue;
            }
            u32 rank = here ? rank_of(column, rows, slot) : ALL_LANES;
            u32 entry = rank != ALL_LANES ? rows.values[rank] : ALL_LANES;
            Place place = {0, 0};
            if (entry < column->entries) place = place_of(source, entry);
            u64 all, sum = block_exclusive<WARPS>(place.len, room, &all);
            if (here) {
                text->places[first + slot] = place.from;
                store_offset(text, first + slot, offset + sum);
            }
            offset += all;
        }
        if (index + 1 == text->tile_end && threadIdx.x == 0) {
            u64 all = strings->before[text->tile_end] - zero;
            store_offset(text, text->rows, all);
            *text->bytes = all;
        }
    }
}

// `count` bytes, 8 at most, from any address on; no word is read that has none of them.
static __device__ u64 some_bytes(const Job *job, u64 from, u32 count) {
    u64 word = from & ~3ull;
    u32 skew = (u32)(from & 3), shift = skew * 8;
    bool second = skew + count > 4, third = skew + count > 8;
    u32 a, b = 0, c = 0;
    if (word >= job->floor && word + 12 <= job->ceiling) {
        const u32 *words = (const u32 *)word;
        a = words[0];
        if (second) b = words[1];
        if (third) c = words[2];
    } else {
        a = word_at(job, word);
        if (second) b = word_at(job, word + 4);
        if (third) c = word_at(job, word + 8);
    }
    u64 bytes = __funnelshift_r(a, b, shift) | (u64)__funnelshift_r(b, c, shift) << 32;
    return count < 8 ? bytes & ((1ull << count * 8) - 1) : bytes;
}

// The last of ascending numbers, from `low` to before `high`, that is not above `most`; the first one is not.
template <typename Number, typename At> static __device__ Number last_at(Number low, Number high, Number most, At at) {
#pragma unroll 1
    while (high - low > 1) {
        Number middle = low + (high - low) / 2;
        if (at(middle) <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Bytes of the output, a block for each part of it.
WIDE_KERNEL(strings_copy)(const __grid_constant__ StringJob given) {
    const StringJob *strings = &given;
    __shared__ u32 begins[TILE + 1];  // of slots in the part
    __shared__ u32 places[TILE];      // of their first byte there
    const Job *job = &strings->job;
    for (u64 chunk = blockIdx.x; chunk < strings->chunks; chunk += gridDim.x) {
        u64 number = last_at<u64>(0, strings->column_count, chunk, [&](u64 at) { return strings->strings[at].chunk; });
        const Strings *text = &strings->strings[number];
        const Column *column = &job->columns[number];
        u64 zero = strings->before[text->tile], all = strings->before[text->tile_end] - zero;
        u64 begin = (chunk - text->chunk) * CHUNK, end = begin + CHUNK < all ? begin + CHUNK : all;
        u64 index = last_at<u64>(text->tile, text->tile_end, begin + zero, [&](u64 at) { return strings->before[at]; });
        for (; index < text->tile_end && strings->before[index] - zero < end; index++) {
            u64 tile_begin = strings->before[index] - zero, tile_end = strings->before[index + 1] - zero;
            if (tile_begin == tile_end) continue;
            u32 of = job->tiles.pages[index];
            const Page *page = &job->pages[of];
            // These are made where they go.
            if (page->encoding == DELTA_BYTES) continue;
            u32 count = rows_of(page, (u32)(index - page->tiles));
            u64 first = page->first + (index - page->tiles) * TILE, base = source_of(strings, page, of)->base;
            // Slots that have bytes in the part.
            u64 low = first, high = first + count;
            auto offset_at = [&](u64 slot) { return load_offset(text, slot); };
            if (tile_begin < begin) low = last_at<u64>(low, high, begin, offset_at);
            if (tile_end > end) high = last_at<u64>(low, high, end - 1, offset_at) + 1;
            u32 slots = (u32)(high - low);
            __syncthreads();
#pragma unroll 1
            for (u32 i = threadIdx.x; i <= slots; i += THREADS) {
                u64 offset = load_offset(text, low + i), skip = offset < begin ? begin - offset : 0;
                begins[i] = offset > end ? (u32)(end - begin) : (u32)(offset + skip - begin);
                if (i < slots) places[i] = text->places[low + i] + (u32)skip;
            }
            __syncthreads();
            bool checked = text->utf8 && page->encoding != DICTIONARY;
            u32 from = begins[0], to = begins[slots];
#pragma unroll 1
            for (u32 piece = from / 8 * 8 + threadIdx.x * 8; piece < to; piece += THREADS * 8) {
                u32 at = most(piece, from), stop = least(piece + 8, to);
                u32 slot = last_at<u32>(0, slots, at, [&](u32 i) { return begins[i]; });
                u64 bytes = 0;
#pragma unroll 1
                while (at < stop) {
                    while (begins[slot + 1] <= at) slot++;
                    u32 len = least(stop, begins[slot + 1]) - at;
                    u64 source = base + places[slot] + (at - begins[slot]);
                    u64 part = some_bytes(job, source, len);
                    if (checked && part & 0x8080808080808080ull) {
                        u64 offset = load_offset(text, low + slot), past = begin + at - offset;
                        u64 whole = load_offset(text, low + slot + 1) - offset;
                        bool wrong = false;
#pragma unroll 1
                        for (u32 i = 0; i < len; i++)
                            if (part >> (i * 8) & 0x80) wrong |= is_wrong((const u8 *)(source - past), whole, past + i);
                        if (wrong) atomicMin(column->error, page->number == ALL_LANES ? (u64)UTF8 : (u64)page->number << 32 | UTF8);
                    }
                    bytes |= part << ((at - piece) * 8);
                    at += len;
                }
                if (!text->values) continue;
                u8 *output = text->values + begin + piece;
                if (piece >= from && stop == piece + 8) {
                    *(u64 *)output = bytes;
                    continue;
                }
#pragma unroll 1
                for (u32 i = most(piece, from) - piece; i < stop - piece; i++) output[i] = (u8)(bytes >> (i * 8));
            }
        }
    }
}

// Decimals, which are big-endian numbers of any length: a block for each tile.
WIDE_KERNEL(strings_decimals)(const __grid_constant__ StringJob given) {
    const StringJob *strings = &given;
    __shared__ Rows rows;
    const Job *job = &strings->job;
    for (u64 index = blockIdx.x; index < job->tile_count; index += gridDim.x) {
        u32 of = job->tiles.pages[index];
        const Page *page = &job->pages[of];
        const Column *column = &job->columns[page->column];
        const Found *found = &job->found[of];
        if (!is_text(column) || found->failed || !strings->strings[page->column].decimals) continue;
        const Source *source = source_of(strings, page, of);
        if (!source) continue;
        u32 number = (u32)(index - page->tiles), count = rows_of(page, number), units = column->units, base = job->tiles.bases[index];
        u64 first = page->first + (u64)number * TILE;
        u32 *output = (u32 *)column->values + first * units;
        __syncthreads();
        open_tile(job, page, column, found, index, first, count, rows);
#pragma unroll 1
        // A decimal has 16 or 32 bytes, which are eight units at most.
        for (u32 at = threadIdx.x; at < count * units; at += THREADS) {
            u32 row = at / units, low = (at - row * units) * 4, rank = rank_of(column, rows, row), word = 0;
            if (rank != ALL_LANES) {
                Place place = {0, 0};
                u32 entry = page->encoding == DICTIONARY ? rows.values[rank] : base + rank;
                if (page->encoding == DICTIONARY && entry >= column->entries)
                    report(column, page, INDEX);
                else
                    place = place_of(source, entry);
                const u8 *value = (const u8 *)(source->base + place.from);
                if (place.len > units * 4) {
                    report(column, page, LENGTH);
                } else if (place.len) {
                    u32 sign = value[0] & 0x80 ? 0xff : 0;
#pragma unroll 1
                    for (u32 i = 0; i < 4; i++) word |= (low + i < place.len ? value[place.len - 1 - low - i] : sign) << (i * 8);
                }
            }
            output[at] = word;
        }
    }
}
