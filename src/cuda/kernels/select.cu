// Some slots of columns, as buffers of their own.
//
// What is wanted are ranges of slots. Ranges of lists lead to ranges of their items, and ranges of strings to ranges of bytes, so that each
// buffer is copied in the same way: a range of it is one piece of the source. Ranges are in the order of what comes out, and may be empty.
#include "scan.cuh"

#define THREADS 128u
#define WARPS (THREADS / LANES)
// What a block makes: bytes, words of bits, offsets.
#define BYTES_OF_PIECE 8192u
#define WORDS_OF_PIECE 512u
#define OFFSETS_OF_PIECE 1024u

// Ranges of slots.
struct Ranges {
    const u64 *starts;  // the first slot of each
    const u64 *before;  // slots of those before each; and one more, of all
    u64 count;
};
static_assert(sizeof(Ranges) == 24);  // what `Space::describe` in columns/select.rs writes

// What ranges of lists lead to.
struct Within {
    Ranges lists;
    const u8 *offsets;  // null: each list has `size` items
    u64 size;
    u64 slots;  // items that there are
    u64 *starts;
    u64 *lengths;
    u32 wide;  // offsets of 8 bytes
    u32 unused;
};
static_assert(sizeof(Within) == 72);  // what `spaces` there writes

struct WithinJob {
    const Within *entries;
    u64 count;
    u64 ranges;  // places of each entry: those behind its own are empty
};
static_assert(sizeof(WithinJob) == 24);  // the same

struct TotalsJob {
    const Ranges *ranges;
    u64 count;
    u64 *totals;
};
static_assert(sizeof(TotalsJob) == 24);  // what `totals` there writes

enum What { BYTES = 0, BITS = 1, OFFSETS = 2 };

// A buffer.
struct Part {
    Ranges ranges;
    const u8 *source;
    u8 *output;
    u64 len;          // bytes of the source
    u64 *set;         // BITS: counts those that are set
    Ranges items;     // OFFSETS: what they are offsets of
    u64 piece;        // its first in the launch
    u32 what;
    u32 width;        // BYTES: of a slot; OFFSETS: 4 or 8
};
static_assert(sizeof(Part) == 96);  // what `Parts::launch` there writes

struct SelectJob {
    const Part *parts;
    u64 count;
    u64 pieces;
};
static_assert(sizeof(SelectJob) == 24);  // the same

static __device__ u64 load_offset(const u8 *offsets, bool wide, u64 at) {
    return wide ? ((const u64 *)offsets)[at] : ((const u32 *)offsets)[at];
}

// The last of ascending numbers, from `low` to before `high`, that is not above `most`; the first one is not.
template <typename At> static __device__ u64 last_at(u64 low, u64 high, u64 most, At at) {
#pragma unroll 1
    while (high - low > 1) {
        u64 middle = low + (high - low) / 2;
        if (at(middle) <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

KERNEL(select_within, THREADS)(const __grid_constant__ WithinJob given) {
    const WithinJob *job = &given;
    for (u64 index = thread_number(); index < job->count * job->ranges; index += thread_count()) {
        const Within *entry = &job->entries[index / job->ranges];
        u64 at = index % job->ranges, start = 0, end = 0;
        if (at < entry->lists.count) {
            u64 first = entry->lists.starts[at], last = first + (entry->lists.before[at + 1] - entry->lists.before[at]);
            start = entry->offsets ? load_offset(entry->offsets, entry->wide, first) : first * entry->size;
            end = entry->offsets ? load_offset(entry->offsets, entry->wide, last) : last * entry->size;
            // Whatever the offsets are, nothing behind the items is looked at.
            if (end > entry->slots) end = entry->slots;
            if (start > end) start = end;
        }
        entry->starts[at] = start;
        entry->lengths[at] = end - start;
    }
}

// How many slots there are, for the host to make room.
KERNEL(select_totals, THREADS)(const __grid_constant__ TotalsJob given) {
    const TotalsJob *job = &given;
    for (u64 index = thread_number(); index < job->count; index += thread_count())
        job->totals[index] = job->ranges[index].before[job->ranges[index].count];
}

// `count` bytes, 8 at most, of a source from byte `at` on; no byte outside of it is read.
static __device__ u64 some_bytes(const Part *part, u64 at, u32 count) {
    u64 address = (u64)part->source + at, word = address & ~3ull, end = (u64)part->source + part->len;
    if (count == 8 && address % 8 == 0) return *(const u64 *)address;
    u64 bytes = 0;
    if (word >= (u64)part->source && word + 12 <= end) {
        const u32 *words = (const u32 *)word;
        u32 skew = (u32)(address & 3), shift = skew * 8;
        u32 a = words[0], b = skew + count > 4 ? words[1] : 0, c = skew + count > 8 ? words[2] : 0;
        bytes = __funnelshift_r(a, b, shift) | (u64)__funnelshift_r(b, c, shift) << 32;
        return count < 8 ? bytes & ((1ull << count * 8) - 1) : bytes;
    }
#pragma unroll 1
    for (u32 i = 0; i < count; i++) bytes |= (u64) * (const u8 *)(address + i) << (i * 8);
    return bytes;
}

// Copies what lies in one piece to where 16 bytes can be written at once, by all threads. False, and nothing done, at the edges of the source.
static __device__ bool copy_piece(const Part *part, u64 at, u8 *output, u32 count) {
    u64 from = (u64)part->source + at, word = from & ~3ull;
    u32 shift = (u32)(from & 3) * 8, words = count / 4;
    if (shift && (word < (u64)part->source || word + words * 4ull + 4 > (u64)part->source + part->len)) return false;
    u32 done = words * 4 + threadIdx.x;
    if (done < count) output[done] = *(const u8 *)(from + done);
    if (from % 16 == 0) {
        const uint4 *source = (const uint4 *)from;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < words / 4; i += THREADS) ((uint4 *)output)[i] = source[i];
        u32 left = (words & ~3u) + threadIdx.x;
        if (left < words) ((u32 *)output)[left] = ((const u32 *)from)[left];
        return true;
    }
    const u32 *source = (const u32 *)word;
    if (!shift) {
#pragma unroll 4
        for (u32 i = threadIdx.x; i < words; i += THREADS) ((u32 *)output)[i] = source[i];
        return true;
    }
#pragma unroll 4
    for (u32 i = threadIdx.x; i < words; i += THREADS) ((u32 *)output)[i] = __funnelshift_r(source[i], source[i + 1], shift);
    return true;
}

static __device__ void some_of_bytes(const Part *part, u64 number) {
    const Ranges &ranges = part->ranges;
    u64 width = part->width, all = ranges.before[ranges.count] * width;
    u64 begin = number * BYTES_OF_PIECE, end = begin + BYTES_OF_PIECE < all ? begin + BYTES_OF_PIECE : all;
    auto before = [&](u64 at) { return ranges.before[at] * width; };
    u64 low = last_at(0, ranges.count, begin, before), high = last_at(low, ranges.count, end - 1, before) + 1;
    if (high - low == 1 &&
        copy_piece(part, ranges.starts[low] * width + (begin - before(low)), part->output + begin, (u32)(end - begin)))
        return;
#pragma unroll 1
    for (u64 at = begin + threadIdx.x * 8; at < end; at += THREADS * 8) {
        u32 wanted = end - at < 8 ? (u32)(end - at) : 8, done = 0;
        u64 range = last_at(low, high, at, before), bytes = 0;
#pragma unroll 1
        while (done < wanted) {
            while (before(range + 1) <= at + done) range++;
            u64 left = before(range + 1) - (at + done);
            u32 take = left < wanted - done ? (u32)left : wanted - done;
            u64 from = ranges.starts[range] * width + (at + done - before(range));
            bytes |= some_bytes(part, from, take) << (done * 8);
            done += take;
        }
        if (wanted == 8) {
            *(u64 *)(part->output + at) = bytes;
            continue;
        }
#pragma unroll 1
        for (u32 i = 0; i < wanted; i++) part->output[at + i] = (u8)(bytes >> (i * 8));
    }
}

static __device__ void some_of_bits(const Part *part, u64 number) {
    const Ranges &ranges = part->ranges;
    const u32 *source = (const u32 *)part->source;
    u64 all = ranges.before[ranges.count], words = (all + 31) / 32;
    auto before = [&](u64 at) { return ranges.before[at]; };
    u32 set = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < WORDS_OF_PIECE; i += THREADS) {
        u64 word = number * WORDS_OF_PIECE + i, first = word * 32;
        if (word >= words) break;
        u32 wanted = all - first < 32 ? (u32)(all - first) : 32, done = 0, bits = 0;
        u64 range = last_at(0, ranges.count, first, before);
#pragma unroll 1
        while (done < wanted) {
            while (before(range + 1) <= first + done) range++;
            u64 left = before(range + 1) - (first + done), bit = ranges.starts[range] + (first + done - before(range));
            u32 take = left < wanted - done ? (u32)left : wanted - done, shift = (u32)(bit % 32);
            u32 some = source[bit / 32] >> shift;
            if (shift + take > 32) some |= source[bit / 32 + 1] << (32 - shift);
            if (take < 32) some &= (1u << take) - 1;
            bits |= some << done;
            done += take;
        }
        ((u32 *)part->output)[word] = bits;
        set += __popc(bits);
    }
    u64 total;
    warp_exclusive(set, &total);
    if (threadIdx.x % LANES == 0 && total) atomicAdd(part->set, total);
}

static __device__ void some_of_offsets(const Part *part, u64 number) {
    const Ranges &ranges = part->ranges, &items = part->items;
    u64 all = ranges.before[ranges.count], begin = number * OFFSETS_OF_PIECE;
    auto before = [&](u64 at) { return ranges.before[at]; };
    bool wide = part->width == 8;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < OFFSETS_OF_PIECE; i += THREADS) {
        u64 slot = begin + i;
        if (slot > all) break;
        u64 offset = items.before[items.count];
        if (slot < all) {
            // Not an empty one: the last whose slots begin there.
            u64 range = last_at(0, ranges.count, slot, before);
            u64 from = ranges.starts[range] + (slot - before(range));
            offset = items.before[range] + (load_offset(part->source, wide, from) - items.starts[range]);
        }
        if (wide)
            ((u64 *)part->output)[slot] = offset;
        else
            ((u32 *)part->output)[slot] = (u32)offset;
    }
}

// Pieces of what comes out, a block for each.
KERNEL_WITH(select, THREADS, 8)(const __grid_constant__ SelectJob given) {
    const SelectJob *job = &given;
    for (u64 piece = blockIdx.x; piece < job->pieces; piece += gridDim.x) {
        const Part *part = &job->parts[last_at(0, job->count, piece, [&](u64 at) { return job->parts[at].piece; })];
        u64 number = piece - part->piece;
        switch (part->what) {
        case BYTES: some_of_bytes(part, number); break;
        case BITS: some_of_bits(part, number); break;
        default: some_of_offsets(part, number); break;
        }
    }
}
