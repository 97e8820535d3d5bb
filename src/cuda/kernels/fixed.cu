// Values of fixed width, and booleans, into the rows of the output: a block for each tile.
//
// A row takes the value whose rank among the values of its page is that of the row among those that are not null. Dictionary
// indices never leave the block: they are unpacked to shared memory, looked up, and the entry is written.
#include "rows.cuh"
#include "units.cuh"

// A value: its first byte, and how far it is from one byte to the next.
struct Value {
    u64 at;
    u64 stride;
};

static __device__ u32 byte_of(Value value, u32 byte) { return *(const u8 *)(value.at + byte * value.stride); }

static __device__ u32 word_of(const Job *job, Value value, u32 byte) {
    if (value.stride == 1) return four_bytes(job, value.at + byte);
    return byte_of(value, byte) | byte_of(value, byte + 1) << 8 | byte_of(value, byte + 2) << 16 | byte_of(value, byte + 3) << 24;
}

static __device__ u64 double_of(const Job *job, Value value, u32 byte) {
    if (value.stride == 1) return eight_bytes(job, value.at + byte);
    return word_of(job, value, byte) | (u64)word_of(job, value, byte + 4) << 32;
}

// Four bytes of a big-endian integer as a little-endian one, from byte `low` on.
static __device__ u32 turned(Value value, u32 width, u32 low) {
    u32 sign = byte_of(value, 0) & 0x80 ? 0xff : 0, word = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 byte = low + i < width ? byte_of(value, width - 1 - low - i) : sign;
        word |= byte << (i * 8);
    }
    return word;
}

// The unit `number` of what a value becomes.
static __device__ u64 converted(const Job *job, const Column *column, Value value, u32 number) {
    u32 width = column->width;
    switch (column->convert) {
    case BYTES: {
        u32 byte = column->argument + number * column->unit;
        switch (column->unit) {
        case 8: return double_of(job, value, byte);
        case 4: return word_of(job, value, byte);
        case 2: return byte_of(value, byte) | byte_of(value, byte + 1) << 8;
        default: return byte_of(value, byte);
        }
    }
    case WIDEN: {
        if (number * 4 < width) return word_of(job, value, number * 4);
        return byte_of(value, width - 1) & 0x80 ? ALL_LANES : 0;
    }
    case WIDEN_BIG_ENDIAN: return turned(value, width, number * 4);
    // Of a dictionary at 0 with entries of a byte.
    case INDICES: return value.at;
    case DAYS: return (u64)((i64)(int)word_of(job, value, 0) * 86400000);
    default: {
        // INT96. Past the range it wraps around.
        i64 nanoseconds = (i64)double_of(job, value, 0), days = (i64)(int)word_of(job, value, 8) - 2440588;
        i64 second = column->argument;
        return (u64)days * (u64)(86400 * second) + (u64)(nanoseconds / (1000000000 / second));
    }
    }
}

// Copies `count` words to where words can be; the source can be at any byte. False, and nothing done, at the edges of the arena.
static __device__ bool copy_words(const Job *job, u64 from, u8 *output, u32 count) {
    u64 word = from & ~3ull;
    if (word < job->floor || word + count * 4ull + 4 > job->ceiling) return false;
    u32 shift = (u32)(from & 3) * 8;
    if ((from | (u64)output) % 16 == 0) {
        const uint4 *source = (const uint4 *)from;
        uint4 *target = (uint4 *)output;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count / 4; i += THREADS) target[i] = source[i];
        u32 left = (count & ~3u) + threadIdx.x;
        if (left < count) ((u32 *)output)[left] = ((const u32 *)from)[left];
        return true;
    }
    const u32 *source = (const u32 *)word;
    u32 *target = (u32 *)output;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < count; i += THREADS) target[i] = shift ? __funnelshift_r(source[i], source[i + 1], shift) : source[i];
    return true;
}

KERNEL_WITH(fixed, THREADS, 8)(const __grid_constant__ Job given) {
    const Job *job = &given;
    __shared__ Rows rows;
    for (u64 index = blockIdx.x; index < job->tile_count; index += gridDim.x) {
        u32 of = job->tiles.pages[index];
        const Page *page = &job->pages[of];
        const Column *column = &job->columns[page->column];
        const Found *found = &job->found[of];
        if (found->failed || column->width == 0) continue;
        u32 number = (u32)(index - page->tiles), count = rows_of(page, number);
        u64 first = page->first + (u64)number * TILE;
        u32 unit = column->unit, units = column->units, encoding = page->encoding;
        u8 *output = column->values + first * unit * units;
        u64 section = (u64)page->body + found->section;
        // `delta` has brought these to their rows.
        if (encoding == DELTA_PACKED) continue;
        u32 base = job->tiles.bases[index];
        u64 plain = section + (u64)base * column->width;
        // No nulls and nothing to convert: a copy.
        if (encoding == PLAIN && job->tiles.counts[index] == count && column->convert == BYTES && unit * units == column->width &&
            column->width % 4 == 0 && copy_words(job, plain, output, count * (column->width / 4)))
            continue;
        // Until nobody looks at the tile before.
        __syncthreads();
        open_tile(job, page, column, found, index, first, count, rows);
        // A unit has a byte at least, so that there are as many as `WIDEST` allows at most.
        for (u32 at = threadIdx.x; at < count * units; at += THREADS) {
            u32 row = units == 1 ? at : at / units, rank = rank_of(column, rows, row);
            u64 result = 0;
            if (rank != ALL_LANES) {
                Value value = {plain + (u64)rank * column->width, 1};
                bool there = true;
                if (encoding == DICTIONARY) {
                    u32 entry = rows.values[rank];
                    there = entry < column->entries;
                    value.at = (u64)column->dictionary + (u64)entry * column->width;
                } else if (encoding == SPLIT) {
                    value.at = section + base + rank;
                    value.stride = found->values;
                }
                if (there)
                    result = converted(job, column, value, at - row * units);
                else
                    report(column, page, INDEX);
            }
            store_unit(output, unit, at, result);
        }
    }
}

KERNEL(booleans, THREADS)(const __grid_constant__ Job given) {
    const Job *job = &given;
    __shared__ Rows rows;
    __shared__ u32 words[LANES];
    for (u64 index = blockIdx.x; index < job->tile_count; index += gridDim.x) {
        u32 of = job->tiles.pages[index];
        const Page *page = &job->pages[of];
        const Column *column = &job->columns[page->column];
        const Found *found = &job->found[of];
        if (found->failed || column->width != 0 || column->convert == TEXT) continue;
        u32 number = (u32)(index - page->tiles), count = rows_of(page, number), base = job->tiles.bases[index];
        u64 first = page->first + (u64)number * TILE;
        __syncthreads();
        open_tile(job, page, column, found, index, first, count, rows);
        for (u32 row = threadIdx.x; row < TILE; row += THREADS) {
            u32 rank = row < count ? rank_of(column, rows, row) : ALL_LANES, bit = 0;
            if (rank != ALL_LANES) {
                if (page->encoding == RLE)
                    bit = rows.values[rank];
                else
                    bit = some_bits(job, page->body + found->section, (u64)base + rank, 1);
            }
            u32 word = __ballot_sync(ALL_LANES, bit);
            if (row % LANES == 0) words[row / LANES] = word;
        }
        __syncthreads();
        if (threadIdx.x < LANES) store_bits((u32 *)column->values, first, count, words[threadIdx.x]);
    }
}
