// Levels of nested columns become slots: offsets of lists, bitmaps of lists and structs, and that of the values.
//
// `nesting_walk` checks the runs of both kinds of levels and notes where each tile begins. `nesting_levels` writes them one byte an
// entry, and counts what each tile has on each depth; sums of that say where its slots begin. `nesting_totals` says it of pages, to
// the host, which makes room. `nesting_slots` fills it. There is no recursion: whether an entry is a slot of a depth can be seen of its
// two levels alone.
#include "scan.cuh"
#include "walk.cuh"

// Depths: 0 are rows, n are slots in the nth list.
#define DEPTHS 5u
// Sums of a tile: a number for each depth, and one of values.
#define COUNTS (DEPTHS + 1u)
// Bits of a depth's number where those of all depths are in one word: up to 1,024 each.
#define FIELD 12u

// What an entry is, by its levels.
enum Kind {
    // Bit n: a slot of depth n.
    VALUE = 1 << 5,
    // A fixed-size list that is null: on the deepest depth, as many slots as it should have.
    PAD = 1 << 6,
    WRONG = 1 << 7,
};

enum List { NONE = 0, SMALL = 1, LARGE = 2, FIXED = 3 };

// A leaf. Its entry of lists begins with 0, which is for no list.
struct Nest {
    u64 *error;       // least page << 32 | check
    const u8 *kinds;  // of each definition level << 3 | repetition level
    u8 *offsets[DEPTHS];
    u32 list[DEPTHS];  // of `List`
    u32 size[DEPTHS];  // of a fixed-size list
    u32 full[DEPTHS];  // the definition level from which on there are items
    u32 lists;
    u32 rep_bits;
    u32 def_bits;
    u32 pad;  // slots of an entry that is a `PAD`
    u32 first_bitmap;
    u32 bitmaps;
    u32 skip;  // the host has given it up
    u32 first_tile;
    u32 tiles;
};
static_assert(sizeof(Nest) == 152);  // `NEST` in columns/nesting.rs

// A bit for each slot of a depth: whether the definition level is as high.
struct Bitmap {
    u32 *bits;
    u64 *valid;  // how many are set
    u32 depth;
    u32 def;
};
static_assert(sizeof(Bitmap) == 24);  // what `Table::fill` there writes

struct NestJob {
    Job job;             // its tiles are those of definition levels
    const Nest *nests;   // by the column of a page
    Mark *repeats;       // where those of repetition levels begin
    u8 *levels;          // of each tile 1,024: definition << 3 | repetition
    u64 *counts;         // COUNTS rows with a number for each tile
    const u64 *sums;     // the same, exclusive, and one more in each row
    u64 *totals;         // of each page its counts, and where its values begin
    const Bitmap *bitmaps;
};
static_assert(sizeof(NestJob) == 176);  // `Job`, and seven numbers that are written there

static __device__ void report_nest(const Nest *nest, const Page *page, u32 check) {
    atomicMin(nest->error, (u64)page->number << 32 | check);
}

// There are fewer tiles than fit 32 bits, and fewer pages: the host sees to that.
static __device__ u32 warp_number() { return (blockIdx.x * THREADS + threadIdx.x) / LANES; }
static __device__ u32 warp_count() { return gridDim.x * WARPS; }

static __device__ u32 walk_both(const Page *page, const Nest *nest, Found *found, Mark *repeats, Mark *marks, u32 tile_count) {
    u32 rep_at = 0, rep_end = page->rep_len, at = page->rep_len, end = 0;
    if (page->v1) {
        rep_end = 0;
        if (nest->lists) {
            if (page->len < 4) return LEVELS_LENGTH;
            u32 len = length_at(page->body);
            if (len > page->len - 4) return LEVELS_LENGTH;
            rep_at = 4;
            rep_end = 4 + len;
        }
        if (page->len - rep_end < 4) return LEVELS_LENGTH;
        u32 len = length_at(page->body + rep_end);
        at = rep_end + 4;
        if (len > page->len - at) return LEVELS_LENGTH;
        end = at + len;
    } else {
        if (rep_end > page->len || page->def_len > page->len - rep_end) return LEVELS_LENGTH;
        end = rep_end + page->def_len;
    }
    if (threadIdx.x % LANES == 0) {
        found->section = end;
        found->levels = end;
        found->end = rep_end;
    }
    if (page->flags & KNOWN_LEVELS) return 0;
    // First those of lists.
#pragma unroll 1
    for (u32 stream = nest->lists ? 0 : 1; stream < 2; stream++) {
        u32 from = stream ? at : rep_at, to = stream ? end : rep_end, bits = stream ? nest->def_bits : nest->rep_bits;
        u32 wrong = walk_runs(page->body, from, to, bits, page->entries, stream ? marks : repeats, tile_count, 0);
        if (wrong) return (stream ? LEVELS : REPEATS) | wrong;
        // The `parquet` crate reads levels of lists ahead, and what follows may not be to its liking.
        if (!stream && from < to) return REPEATS_REST;
    }
    return 0;
}

KERNEL_WITH(nesting_walk, THREADS, 6)(const __grid_constant__ NestJob given) {
    const NestJob *nested = &given;
    const Job *job = &nested->job;
    u32 lane = threadIdx.x % LANES;
    for (u32 index = warp_number(); index < (u32)job->page_count; index += warp_count()) {
        const Page *page = &job->pages[index];
        const Nest *nest = &nested->nests[page->column];
        u32 tile_count = (page->entries + TILE - 1) / TILE;
        for (u32 tile = lane; tile < tile_count; tile += LANES) job->tiles.pages[page->tiles + tile] = index;
        Mark *marks = job->tiles.levels + page->tiles;
        u32 wrong = walk_both(page, nest, &job->found[index], nested->repeats + page->tiles, marks, tile_count);
        __syncwarp();
        if (lane == 0) {
            job->found[index].failed = wrong != 0;
            if (wrong) report_nest(nest, page, wrong);
        }
    }
}

// Pages of which it is known where the levels of each tile begin, as in `walk`: a warp for each tile.
KERNEL_WITH(nesting_known, THREADS, 6)(const __grid_constant__ NestJob given) {
    const NestJob *nested = &given;
    const Job *job = &nested->job;
    for (u32 index = warp_number(); index < (u32)job->tile_count; index += warp_count()) {
        const Page *page = &job->pages[job->tiles.pages[index]];
        const Found *found = &job->found[job->tiles.pages[index]];
        const Nest *nest = &nested->nests[page->column];
        if (!(page->flags & KNOWN_LEVELS) || found->failed) continue;
        u32 number = index - (u32)page->tiles, tile_count = (page->entries + TILE - 1) / TILE, wrong = 0;
        bool is_last = number + 1 == tile_count;
#pragma unroll 1
        for (u32 stream = nest->lists ? 0 : 1; stream < 2 && !wrong; stream++) {
            u32 begin = stream ? (page->v1 ? found->end + 4 : page->rep_len) : (page->v1 ? 4 : 0), after;
            u32 end = stream ? found->levels : found->end, bits = stream ? nest->def_bits : nest->rep_bits;
            const Mark *marks = stream ? job->tiles.levels : nested->repeats;
            wrong = known_levels(page->body, marks + index, number == 0, is_last, begin, end, bits, rows_of(page, number), after);
            if (wrong && wrong != MARKS)
                wrong |= stream ? LEVELS : REPEATS;
            else if (!wrong && !stream && is_last && after < end)
                wrong = REPEATS_REST;
        }
        if (wrong && threadIdx.x % LANES == 0) report_nest(nest, page, wrong);
    }
}

// Adds the levels of a tile to its bytes, shifted, by a warp.
static __device__ void add_levels(const Job *job, const Page *page, const Mark *mark, u32 end, u32 bits, u32 rows, u32 shift, u8 *levels) {
    u32 at = mark->byte, skip = mark->skip;
    for (u32 done = 0; done < rows;) {
        Run run;
        // `nesting_walk` has been here.
        if (read_run(page->body, at, end, bits, run)) break;
        u32 take = least(run.len - skip, rows - done);
        u64 bit = (u64)skip * bits;
        const u8 *from = page->body + run.data + bit / 8;
#pragma unroll 1
        for (u32 i = threadIdx.x % LANES; i < take; i += LANES) {
            u32 value = run.value;
            if (run.packed) value = some_bits(job, from, (u32)bit % 8 + i * bits, bits);
            levels[done + i] |= (u8)(value << shift);
        }
        __syncwarp();
        done += take;
        skip = 0;
        at = (u32)(run.next < end ? run.next : end);
    }
}

KERNEL_WITH(nesting_levels, THREADS, 6)(const __grid_constant__ NestJob given) {
    const NestJob *nested = &given;
    __shared__ u64 room[WARPS][TILE / 8];
    const Job *job = &nested->job;
    u32 lane = threadIdx.x % LANES;
    u64 *words = room[threadIdx.x / LANES];
    const u8 *bytes = (const u8 *)words;
    for (u32 index = warp_number(); index < (u32)job->tile_count; index += warp_count()) {
        const Page *page = &job->pages[job->tiles.pages[index]];
        const Found *found = &job->found[job->tiles.pages[index]];
        const Nest *nest = &nested->nests[page->column];
        u32 lists = nest->lists, values = 0, pads = 0;
        u64 counts = 0;
        if (!found->failed) {
            u32 rows = rows_of(page, index - (u32)page->tiles);
#pragma unroll 1
            for (u32 i = lane; i < TILE / 8; i += LANES) words[i] = 0;
            __syncwarp();
#pragma unroll 1
            for (u32 stream = lists ? 0 : 1; stream < 2; stream++) {
                u32 end = stream ? found->levels : found->end, bits = stream ? nest->def_bits : nest->rep_bits;
                const Mark *marks = stream ? job->tiles.levels : nested->repeats;
                add_levels(job, page, marks + index, end, bits, rows, stream ? 3 : 0, (u8 *)words);
            }
            u64 *levels = (u64 *)(nested->levels + (u64)index * TILE);
#pragma unroll 1
            for (u32 i = lane; i * 8 < rows; i += LANES) levels[i] = words[i];
            u32 wrong = 0;
#pragma unroll 1
            for (u32 first = 0; first < rows; first += LANES) {
                u32 entry = first + lane;
                u32 kind = entry < rows ? nest->kinds[bytes[entry]] : 0;
#pragma unroll 1
                for (u32 depth = 0; depth <= lists; depth++)
                    counts += (u64)__popc(__ballot_sync(ALL_LANES, kind >> depth & 1)) << (depth * FIELD);
                values += __popc(__ballot_sync(ALL_LANES, kind & VALUE));
                if (nest->pad) pads += __popc(__ballot_sync(ALL_LANES, kind & PAD));
                wrong |= kind & WRONG;
            }
            if (__any_sync(ALL_LANES, wrong) && lane == 0) report_nest(nest, page, LEVEL);
            __syncwarp();
        }
        if (lane < COUNTS) {
            u64 count = lane < DEPTHS ? counts >> (lane * FIELD) & ((1u << FIELD) - 1) : values;
            if (lane == lists) count += (u64)pads * nest->pad;
            nested->counts[lane * job->tile_count + index] = count;
        }
    }
}

// Sums of a page are differences of those of tiles.
KERNEL(nesting_totals, THREADS)(const __grid_constant__ NestJob given) {
    const NestJob *nested = &given;
    const Job *job = &nested->job;
    for (u64 item = thread_number(); item < job->page_count * (COUNTS + 1); item += thread_count()) {
        u64 index = item / (COUNTS + 1);
        u32 row = (u32)(item % (COUNTS + 1));
        const Page *page = &job->pages[index];
        u64 value = 0;
        if (row < COUNTS) {
            const u64 *sums = nested->sums + row * (job->tile_count + 1) + page->tiles;
            value = sums[(page->entries + TILE - 1) / TILE] - sums[0];
        } else if (!job->found[index].failed) {
            value = job->found[index].section;
        }
        nested->totals[item] = value;
    }
}

static __device__ u32 field(u64 counts, u32 depth) { return (u32)(counts >> (depth * FIELD)) & ((1u << FIELD) - 1); }

// One in the field of each depth that an entry of this kind is a slot of.
static __device__ u64 fields(u32 kind) {
    return (kind & 1) | (u64)(kind & 2) << 11 | (u64)(kind & 4) << 22 | (u64)(kind & 8) << 33 | (u64)(kind & 16) << 44;
}

// The entries of a thread of `nesting_slots`.
struct Own {
    u64 levels;  // a byte each
    u64 kinds;   // the same
    u64 before;  // slots of each depth in the tile before its first
    u64 pads;    // and of `PAD`s
    u32 count;   // 8 at most
};

static __device__ u32 byte_at(u64 bytes, u32 at) { return (u32)(bytes >> (at * 8)) & 0xff; }

// Offsets of the lists that begin with own entries, and checks of what comes after what.
static __device__ void own_lists(const Nest *nest, const Page *page, const Own &own, u32 previous, bool begins, const u64 *base) {
    u64 rank = own.before, pads = own.pads;
    u32 lists = nest->lists, wrong = 0;
#pragma unroll 1
    for (u32 i = 0; i < own.count; i++) {
        u32 level = byte_at(own.levels, i), kind = byte_at(own.kinds, i), repetition = level & 7;
        if (repetition) {
            if (begins && i == 0)
                wrong = wrong ? least(wrong, BEGIN) : BEGIN;
            else if (repetition <= lists && previous >> 3 < nest->full[repetition])
                wrong = wrong ? least(wrong, CONTINUED) : CONTINUED;
        }
        previous = level;
#pragma unroll 1
        for (u32 depth = 1; depth <= lists; depth++) {
            if (!(kind >> (depth - 1) & 1)) continue;
            u64 slot = base[depth - 1] + field(rank, depth - 1), item = base[depth] + field(rank, depth);
            if (depth == lists) item += pads * nest->pad;
            switch (nest->list[depth]) {
            case SMALL: ((u32 *)nest->offsets[depth])[slot] = (u32)item; break;
            case LARGE: ((u64 *)nest->offsets[depth])[slot] = item; break;
            case FIXED:
                if (item != slot * nest->size[depth]) wrong = wrong ? least(wrong, FIXED_SIZE) : FIXED_SIZE;
                break;
            default: break;
            }
        }
        rank += fields(kind);
        pads += (kind & PAD) != 0;
    }
    if (wrong) report_nest(nest, page, wrong);
}

// Bits of own entries that are slots of a depth, the first one lowest, and how many there are.
static __device__ u32 own_bits(const Own &own, const Bitmap *bitmap, u32 &slots) {
    u32 bits = 0;
    slots = 0;
#pragma unroll 1
    for (u32 i = 0; i < own.count; i++) {
        if (!(byte_at(own.kinds, i) >> bitmap->depth & 1)) continue;
        bits |= (u32)(byte_at(own.levels, i) >> 3 >= bitmap->def) << slots;
        slots++;
    }
    return bits;
}

// The same where slots that no entry stands for are between them: bit by bit.
static __device__ void padded_bits(const Nest *nest, const Own &own, const Bitmap *bitmap, u64 base) {
    u64 rank = base + field(own.before, bitmap->depth) + own.pads * nest->pad;
#pragma unroll 1
    for (u32 i = 0; i < own.count; i++) {
        u32 kind = byte_at(own.kinds, i);
        if (kind & PAD) rank += nest->pad;
        if (!(kind >> bitmap->depth & 1)) continue;
        if (byte_at(own.levels, i) >> 3 >= bitmap->def) atomicOr(&bitmap->bits[rank / 32], 1u << (rank % 32));
        rank++;
    }
}

KERNEL(nesting_slots, THREADS)(const __grid_constant__ NestJob given) {
    const NestJob *nested = &given;
    __shared__ u64 room[WARPS];
    __shared__ u64 base[DEPTHS];
    __shared__ u32 words[LANES];
    const Job *job = &nested->job;
    u32 lane = threadIdx.x % LANES;
    for (u32 index = blockIdx.x; index < (u32)job->tile_count; index += gridDim.x) {
        const Page *page = &job->pages[job->tiles.pages[index]];
        const Nest *nest = &nested->nests[page->column];
        if (nest->skip) continue;
        u32 number = index - (u32)page->tiles, rows = rows_of(page, number), first = threadIdx.x * 8, lists = nest->lists;
        // Until nobody looks at the tile before.
        __syncthreads();
        if (threadIdx.x <= lists) {
            const u64 *sums = nested->sums + threadIdx.x * (job->tile_count + 1);
            base[threadIdx.x] = sums[index] - sums[nest->first_tile];
        }
        const u8 *levels = nested->levels + (u64)index * TILE;
        Own own = {};
        u32 previous = 0;
        u64 counts = 0, pads = 0, all_pads = 0, all;
        if (first < rows) {
            own.count = least(8, rows - first);
            own.levels = *(const u64 *)(levels + first);
#pragma unroll 1
            for (u32 i = 0; i < own.count; i++) {
                u32 kind = nest->kinds[byte_at(own.levels, i)];
                own.kinds |= (u64)kind << (i * 8);
                counts += fields(kind);
                pads += (kind & PAD) != 0;
            }
            if (first > 0) {
                previous = levels[first - 1];
            } else if (index > nest->first_tile) {
                // The last entry of the tile before, which may be of another page.
                const Page *other = &job->pages[job->tiles.pages[index - 1]];
                u32 last = rows_of(other, index - 1 - (u32)other->tiles) - 1;
                previous = (levels - TILE)[last];
            }
        }
        own.before = block_exclusive<WARPS>(counts, room, &all);
        if (nest->pad) own.pads = block_exclusive<WARPS>(pads, room, &all_pads);
        // Pages of version 2 begin with a row, and those that are chosen by an index.
        bool begins = first == 0 && number == 0 && (!page->v1 || page->flags & BEGINS || index == nest->first_tile);
        own_lists(nest, page, own, previous, begins, base);
        if (threadIdx.x > 0 && threadIdx.x <= lists && index == nest->first_tile + nest->tiles - 1) {
            u32 depth = threadIdx.x;
            u64 slot = base[depth - 1] + field(all, depth - 1), item = base[depth] + field(all, depth);
            if (depth == lists) item += all_pads * nest->pad;
            if (nest->list[depth] == SMALL) ((u32 *)nest->offsets[depth])[slot] = (u32)item;
            if (nest->list[depth] == LARGE) ((u64 *)nest->offsets[depth])[slot] = item;
            if (nest->list[depth] == FIXED && item != slot * nest->size[depth]) report_nest(nest, page, FIXED_SIZE);
        }
        for (u32 number = 0; number < nest->bitmaps; number++) {
            const Bitmap *bitmap = &nested->bitmaps[nest->first_bitmap + number];
            u32 depth = bitmap->depth, slots;
            u32 bits = own_bits(own, bitmap, slots), set = sum_to_lane(__popc(bits));
            if (lane == LANES - 1 && set) atomicAdd(bitmap->valid, (u64)set);
            if (depth == lists && all_pads) {
                padded_bits(nest, own, bitmap, base[depth]);
                continue;
            }
            __syncthreads();
            if (threadIdx.x < LANES) words[threadIdx.x] = 0;
            __syncthreads();
            u32 at = field(own.before, depth), shift = at % 32;
            if (bits) atomicOr(&words[at / 32], bits << shift);
            if (shift && bits >> (32 - shift)) atomicOr(&words[at / 32 + 1], bits >> (32 - shift));
            __syncthreads();
            if (threadIdx.x < LANES) store_bits(bitmap->bits, base[depth], field(all, depth), words[lane]);
        }
    }
}

struct EvenJob {
    const u8 *offsets;
    u64 count;   // of offsets
    u64 size;    // items that each list should have
    u64 *error;  // becomes the least place of an offset that is another
    u32 width;   // bytes of an offset
    u32 unused;
};
static_assert(sizeof(EvenJob) == 40);  // what `Device::uneven` in columns/even.rs writes

// Whether all lists have the same number of items.
KERNEL(nesting_even, THREADS)(const __grid_constant__ EvenJob given) {
    const EvenJob *job = &given;
    for (u64 at = thread_number(); at < job->count; at += thread_count()) {
        u64 offset = job->width == 8 ? ((const u64 *)job->offsets)[at] : ((const u32 *)job->offsets)[at];
        if (offset != at * job->size) atomicMin(job->error, at);
    }
}
