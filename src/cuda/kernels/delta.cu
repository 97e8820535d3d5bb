// DELTA_BINARY_PACKED: streams become arrays of numbers.
//
// Values are sums of all deltas before them, so that four launches are needed: a walk over the headers of blocks, which checks all
// of them and notes where each 1,024 deltas begin; the sum of each 1,024; the sums of those; and the values. Sums wrap around.
#include "delta.cuh"
#include "units.cuh"

static __device__ bool is_at(const Cursor &cursor, const Checkpoint *checkpoint) {
    return cursor.least == checkpoint->least && cursor.widths == checkpoint->widths && cursor.mini == checkpoint->mini &&
           cursor.data == checkpoint->data && cursor.skip == checkpoint->skip;
}

// Walks over a stream of `count` values of a page from `at` on; `at` becomes where it ends, for LENGTHS. Gives what is wrong, or 0, the same in
// all lanes. What is `known` of the stream begins in its first block; the rest is for `delta_known`.
static __device__ u32 walk_blocks(const Page *page, u32 &at, u32 count, const Stream *stream, Blocks *blocks, Checkpoint *checkpoints,
                                  bool known) {
    const u8 *body = page->body;
    u32 lane = threadIdx.x % LANES, width = stream->width, end = page->len;
    bool whole = stream->kind != NUMBERS;
    u64 block, parts, total, first;
    if (!read_number(body, at, end, block) || !read_number(body, at, end, parts) || !read_number(body, at, end, total) ||
        !read_signed(body, at, end, first))
        return DELTA_HEADER;
    if (!fits(first, width)) return DELTA_RANGE;
    if (block == 0 || block >> 31 || block % 128 || parts == 0 || parts > block || block % parts || block / parts % 32)
        return DELTA_BLOCK;
    if (total < count || total > (whole ? count : page->entries)) return DELTA_COUNT;
    u32 minis = (u32)parts, mini = (u32)block / minis;
    u32 deltas = count ? count - 1 : 0, done = 0, tile = 0;
    if (lane == 0) {
        blocks->first = first;
        blocks->minis = minis;
        blocks->mini = mini;
    }
    if (known) {
        Cursor cursor;
        u32 wrong = open_block(body, at, end, minis, width, cursor);
        if (wrong) return wrong;
        if (!is_at(cursor, checkpoints) || (whole && blocks->end > end)) return DELTA_KNOWN;
        at = blocks->end;
        return 0;
    }
    while (done < deltas) {
        u64 delta;
        if (!read_signed(body, at, end, delta) || minis > end - at) return DELTA_HEADER;
        if (!fits(delta, width)) return DELTA_RANGE;
        u32 widths = at;
        at += minis;
        for (u32 from = 0; from < minis && done < deltas; from += LANES) {
            u32 own = from + lane;
            u64 begin = done + (u64)mini * lane;
            bool wanted = own < minis && begin < deltas;
            u32 bits = wanted ? body[widths + own] : 0;
            u32 taken = wanted ? least(mini, deltas - (u32)begin) : 0;
            u64 size = (u64)bits * (mini / 8), all;
            u64 place = at + warp_exclusive(size, &all);
            // Of the last one, bytes past what is wanted may be missing.
            u32 wrong = 0;
            if (bits > width * 8)
                wrong = DELTA_WIDTH;
            else if (wanted && place + ((u64)bits * taken + 7) / 8 > end)
                wrong = DELTA_SHORT;
            u32 wrongs = __ballot_sync(ALL_LANES, wrong);
            if (wrongs) return __shfl_sync(ALL_LANES, wrong, __ffs(wrongs) - 1);
            u64 next = done + (u64)mini * LANES;
            u32 after = next < deltas ? (u32)next : deltas;
            if (minis - from < LANES && done + (u64)mini * (minis - from) < after) after = done + mini * (minis - from);
            while (tile * (u64)TILE < after) {
                u32 number = tile + lane;
                u64 start = number * (u64)TILE;
                bool here = start < after;
                u32 before = here ? (u32)start - done : 0, of = before / mini;
                u64 data = __shfl_sync(ALL_LANES, place, of);
                if (here) {
                    Checkpoint *checkpoint = &checkpoints[number];
                    checkpoint->least = delta;
                    checkpoint->widths = widths;
                    checkpoint->mini = from + of;
                    checkpoint->data = (u32)data;
                    checkpoint->skip = before - of * mini;
                }
                tile += __popc(__ballot_sync(ALL_LANES, here));
            }
            done = after;
            // Of numbers, the last block may be cut. If one follows, all was there.
            if (at + all > end) {
                if (whole) return DELTA_SHORT;
                all = end - at;
            }
            at += (u32)all;
        }
    }
    if (lane == 0) blocks->end = at;
    return 0;
}

KERNEL_WITH(delta_walk, THREADS, 6)(const __grid_constant__ DeltaJob given) {
    const DeltaJob *work = &given;
    const Job *job = &work->job;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->stream_count; index += warps) {
        const Stream *stream = &work->streams[index];
        const Page *page = &job->pages[stream->page];
        Found *found = &job->found[stream->page];
        if (stream->kind == NEXT_LENGTHS) continue;
        // Nothing else was found of a page that failed.
        bool failed = found->failed;
        u32 tiles = (page->entries + TILE - 1) / TILE, at = failed ? 0 : found->section, wrong = 0;
        // Of few values no more than the first tile is known.
        bool known = !failed && page->flags & KNOWN_VALUES && found->values > TILE + 1;
        for (u64 next = index; next < work->stream_count; next++, stream++) {
            if (next > index && stream->kind != NEXT_LENGTHS) break;
            Checkpoint *checkpoints = work->checkpoints + stream->tiles;
            for (u32 tile = lane; tile < tiles; tile += LANES) {
                checkpoints[tile].stream = (u32)next;
                checkpoints[tile].wrong = 0;
            }
            if (!failed && !wrong) wrong = walk_blocks(page, at, found->values, stream, &work->blocks[next], checkpoints, known);
        }
        __syncwarp();
        if (wrong && lane == 0) {
            found->failed = 1;
            report(&job->columns[page->column], page, DELTA | wrong);
        }
    }
}

// Goes over `count` deltas from the cursor on, which becomes where the next one is. Gives what is wrong, or 0.
static __device__ u32 walk_deltas(const u8 *body, u32 end, const Blocks *blocks, u32 width, u32 count, Cursor &cursor) {
    u32 minis = blocks->minis, mini = blocks->mini;
    for (u32 done = 0; done < count;) {
        if (cursor.mini == minis) {
            u32 wrong = open_block(body, cursor.data, end, minis, width, cursor);
            if (wrong) return wrong;
        }
        u32 bits = body[cursor.widths + cursor.mini], taken = least(mini - cursor.skip, count - done);
        if (bits > width * 8) return DELTA_WIDTH;
        u64 size = (u64)bits * (mini / 8);
        if (cursor.data + ((u64)bits * (cursor.skip + taken) + 7) / 8 > end) return DELTA_SHORT;
        done += taken;
        cursor.skip += taken;
        if (cursor.skip < mini) break;
        // Of numbers, the last block may be cut.
        cursor.data = (u32)(cursor.data + size < end ? cursor.data + size : end);
        cursor.mini++;
        cursor.skip = 0;
    }
    return 0;
}

// What is wrong with a tile of which it is known where it begins: it has to end where the next one begins, or the stream is known to end.
static __device__ u32 known_tile(const Page *page, const Stream *stream, const Blocks *blocks, const Checkpoint *checkpoint, u32 values,
                                 u32 number) {
    const u8 *body = page->body;
    u32 end = page->len, minis = blocks->minis, deltas = values - 1, first = number * TILE;
    Cursor cursor = {checkpoint->least, checkpoint->widths, checkpoint->mini, checkpoint->data, checkpoint->skip};
    if (cursor.widths > end || minis > end - cursor.widths || cursor.mini >= minis || cursor.data > end || cursor.skip >= blocks->mini)
        return DELTA_KNOWN;
    // Blocks have a multiple of so many deltas, and so have tiles: `read_chunk` relies on it.
    if (((u64)cursor.mini * blocks->mini + cursor.skip) % CHUNK) return DELTA_KNOWN;
    u32 count = least(deltas - first, TILE);
    u32 wrong = walk_deltas(body, end, blocks, stream->width, count, cursor);
    if (wrong) return wrong;
    if (first + count < deltas) {
        if (cursor.mini == minis) wrong = open_block(body, cursor.data, end, minis, stream->width, cursor);
        if (wrong) return wrong;
        return is_at(cursor, checkpoint + 1) ? 0 : DELTA_KNOWN;
    }
    if (stream->kind == NUMBERS) return 0;
    u64 after = cursor.data;
    if (cursor.skip) after += (u64)body[cursor.widths + cursor.mini] * (blocks->mini / 8);
    if (after > end) return DELTA_SHORT;
    return after == blocks->end ? 0 : DELTA_KNOWN;
}

// Streams of which it is known where their tiles begin, a warp for each tile.
KERNEL_WITH(delta_known, THREADS, 6)(const __grid_constant__ DeltaJob given) {
    const DeltaJob *work = &given;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->checkpoint_count; index += warps) {
        Checkpoint *checkpoint = &work->checkpoints[index];
        const Stream *stream = &work->streams[checkpoint->stream];
        const Page *page = &work->job.pages[stream->page];
        const Found *found = &work->job.found[stream->page];
        if (found->failed || !(page->flags & KNOWN_VALUES)) continue;
        u32 number = (u32)(index - stream->tiles), values = found->values;
        if (values <= TILE + 1 || number * TILE >= values - 1) continue;
        u32 wrong = known_tile(page, stream, &work->blocks[checkpoint->stream], checkpoint, values, number);
        if (wrong && threadIdx.x % LANES == 0) {
            checkpoint->wrong = 1;
            report(&work->job.columns[page->column], page, DELTA | wrong);
        }
    }
}

// A tile of a stream, as the two kernels below find it.
struct Part {
    const Stream *stream;
    const Page *page;
    const Blocks *blocks;
    u32 first;   // value
    u32 values;
    u32 deltas;  // behind them
    Cursor cursor;
};

// False: there is nothing to do.
static __device__ bool open_part(const DeltaJob *work, u64 index, Part &part) {
    const Checkpoint *checkpoint = &work->checkpoints[index];
    part.stream = &work->streams[checkpoint->stream];
    part.blocks = &work->blocks[checkpoint->stream];
    part.page = &work->job.pages[part.stream->page];
    const Found *found = &work->job.found[part.stream->page];
    if (found->failed || checkpoint->wrong) return false;
    part.first = (u32)(index - part.stream->tiles) * TILE;
    if (part.first >= found->values) return false;
    u32 left = found->values - part.first;
    part.values = least(left, TILE);
    part.deltas = least(left - 1, TILE);
    if (part.deltas) part.cursor = {checkpoint->least, checkpoint->widths, checkpoint->mini, checkpoint->data, checkpoint->skip};
    return true;
}

// The sum of the deltas of each tile, by a warp.
KERNEL_WITH(delta_sums, THREADS, 6)(const __grid_constant__ DeltaJob given) {
    const DeltaJob *work = &given;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->checkpoint_count; index += warps) {
        Part part;
        if (!open_part(work, index, part)) continue;
        u64 sum = 0;
        // Nobody asks for that of the last.
        if (part.values == part.deltas)
            for (u32 done = 0; done < part.deltas; done += CHUNK) {
                u32 count = least(CHUNK, part.deltas - done), bits;
                u64 above[4];
                next_block(part.page->body, part.page->len, part.blocks, part.cursor);
                u64 delta = part.cursor.least;
                read_chunk(&work->job, part.page->body, part.blocks, count, part.cursor, above, bits);
                sum += above[0] + above[1] + above[2] + above[3];
                if (threadIdx.x % LANES == 0) sum += delta * count;
            }
        for (u32 distance = LANES / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        if (threadIdx.x % LANES == 0) work->checkpoints[index].before = sum;
    }
}

// The first value of each tile of a stream, by a warp.
KERNEL(delta_scan, THREADS)(const __grid_constant__ DeltaJob given) {
    const DeltaJob *work = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->stream_count; index += warps) {
        const Stream *stream = &work->streams[index];
        const Found *found = &work->job.found[stream->page];
        if (found->failed) continue;
        u32 count = (found->values + TILE - 1) / TILE;
        u64 before = work->blocks[index].first;
        for (u32 begin = 0; begin < count; begin += LANES) {
            Checkpoint *own = work->checkpoints + stream->tiles + begin + lane;
            bool here = begin + lane < count;
            u64 all, sum = warp_exclusive(here ? own->before : 0, &all);
            if (here) own->before = before + sum;
            before += all;
        }
    }
}

// The sums of the values before each of the four of a lane, and in `total` that of all.
template <class Number>
static __device__ void sums_by_lanes(const Number *values, Number *sums, Number &total) {
    u32 lane = threadIdx.x % LANES;
    Number own = values[0] + values[1] + values[2] + values[3], sum = own;
#pragma unroll
    for (u32 distance = 1; distance < LANES; distance *= 2) {
        Number below = __shfl_up_sync(ALL_LANES, sum, distance);
        if (lane >= distance) sum += below;
    }
    total = __shfl_sync(ALL_LANES, sum, LANES - 1);
    sums[0] = sum - own;
    for (u32 i = 1; i < 4; i++) sums[i] = sums[i - 1] + values[i - 1];
}

// C = A B of bytes, 8 x 16 by 16 x 8. A lane has four bytes of row l / 4 of A, as many of column l / 4 of B, both from 4 (l % 4) on, and two
// numbers of row l / 4 of C, from column 2 (l % 4) on.
static __device__ void multiply(u32 a, u32 b, int &c0, int &c1) {
    c0 = 0;
    c1 = 0;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c0), "+r"(c1) : "r"(a), "r"(b));
}

// The same sums, those within 16 values by tensor cores: A has a byte of each value, 16 to a row, and a column of B has ones above the
// value that the sum is before. Which column belongs to which value is chosen so that each lane gets the sums of its own. Bytes are
// summed alone, by their place in the value, none beyond 15 * 255; `bits` says which there are.
template <class Number>
static __device__ void sums_by_products(const Number *values, u32 bits, Number *sums, Number &total) {
    u32 lane = threadIdx.x % LANES;
    // Column c is of value 4 (c / 2) + c % 2, and in the second product of the one two further on. Row 4 (l % 4) + i is in byte i.
    u32 column = lane / 4, value = column / 2 * 4 + column % 2, row = lane % 4 * 4;
    u32 one = 0, two = 0;
    for (u32 i = 0; i < 4; i++) {
        one |= (u32)(row + i < value) << (8 * i);
        two |= (u32)(row + i < value + 2) << (8 * i);
    }
    for (u32 i = 0; i < 4; i++) sums[i] = 0;
#pragma unroll
    for (u32 byte = 0; byte < sizeof(Number); byte++) {
        if (byte * 8 >= bits) break;
        u32 word[4];
        for (u32 i = 0; i < 4; i++) word[i] = (u32)(values[i] >> (byte / 4 * 16) >> (byte / 4 * 16));
        u32 pick = byte % 4 | (byte % 4 + 4) << 4;
        u32 a = __byte_perm(__byte_perm(word[0], word[1], pick), __byte_perm(word[2], word[3], pick), 0x5410);
        int c[4];
        multiply(a, one, c[0], c[1]);
        multiply(a, two, c[2], c[3]);
        for (u32 i = 0; i < 4; i++) sums[i] += (Number)c[i] << (byte * 8);
    }
    // Then those of whole rows, of which the last of four lanes has the sum.
    Number own = __shfl_sync(ALL_LANES, (Number)(sums[3] + values[3]), lane | 3), sum = own;
#pragma unroll
    for (u32 distance = 4; distance < LANES; distance *= 2) {
        Number below = __shfl_up_sync(ALL_LANES, sum, distance);
        if (lane >= distance) sum += below;
    }
    total = __shfl_sync(ALL_LANES, sum, LANES - 1);
    for (u32 i = 0; i < 4; i++) sums[i] += sum - own;
}

static __device__ void store_four(u32 *to, const u32 *values) { *(uint4 *)to = make_uint4(values[0], values[1], values[2], values[3]); }

static __device__ void store_four(u64 *to, const u64 *values) {
    ((ulonglong2 *)to)[0] = make_ulonglong2(values[0], values[1]);
    ((ulonglong2 *)to)[1] = make_ulonglong2(values[2], values[3]);
}

// A value is the one before it and a delta: the sum of what is above the least, and so many times the least. Makes those of a chunk, of
// which a lane has four, where `deltas` are behind them; `before` is the first of them, and becomes that of the next chunk.
template <class Number, bool PRODUCTS>
static __device__ void make_values(const DeltaJob *work, const Page *page, const Blocks *blocks, u32 deltas, Cursor &cursor, Number &before,
                                   Number *values) {
    u32 lane = threadIdx.x % LANES, bits = 0;
    Number above[4] = {}, total, delta = 0;
    if (deltas) {
        next_block(page->body, page->len, blocks, cursor);
        delta = (Number)cursor.least;
        read_chunk(&work->job, page->body, blocks, deltas, cursor, above, bits);
    }
    if (PRODUCTS)
        sums_by_products(above, bits, values, total);
    else
        sums_by_lanes(above, values, total);
    for (u32 i = 0; i < 4; i++) values[i] += before + delta * (lane * 4 + i);
    before += total + delta * deltas;
}

// Lengths are summed as they are written, so that nobody reads them for that alone. Only this warp looks at the checkpoint.
template <class Number, bool PRODUCTS>
static __device__ void emit(const DeltaJob *work, u64 index, Part &part) {
    u32 lane = threadIdx.x % LANES, bits = 0;
    u64 sum = 0;
    bool lengths = sizeof(Number) == 4 && part.stream->kind != NUMBERS;
    Number before = (Number)work->checkpoints[index].before;
    Number *to = (Number *)part.stream->values + part.first + lane * 4;
    for (u32 done = 0; done < part.values; done += CHUNK) {
        u32 values = least(CHUNK, part.values - done), deltas = done < part.deltas ? least(CHUNK, part.deltas - done) : 0;
        Number four[4];
        make_values<Number, PRODUCTS>(work, part.page, part.blocks, deltas, part.cursor, before, four);
        if (lane * 4 + 4 <= values && (u64)to % 16 == 0)
            store_four(to, four);
        else
            for (u32 i = 0; i < 4; i++)
                if (lane * 4 + i < values) to[i] = four[i];
        to += CHUNK;
        if (!lengths) continue;
        for (u32 i = 0; i < 4; i++) {
            if (lane * 4 + i >= values) break;
            sum += four[i];
            bits |= (u32)four[i];
        }
    }
    if (!lengths) return;
    for (u32 distance = LANES / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    if (__any_sync(ALL_LANES, bits >> 31)) sum = NEGATIVE;
    // All lanes have looked at what is before the tile.
    __syncwarp();
    if (lane == 0) work->checkpoints[index].before = sum;
}

// Of a tile that is wrong the values are zeros, so that there are some.
static __device__ void no_values(const DeltaJob *work, u64 index, const Part &part) {
    const Found *found = &work->job.found[part.stream->page];
    u32 first = (u32)(index - part.stream->tiles) * TILE;
    if (!work->checkpoints[index].wrong || found->failed || first >= found->values) return;
    u32 *words = (u32 *)part.stream->values + (u64)first * (part.stream->width / 4);
    u32 count = least(found->values - first, TILE) * (part.stream->width / 4);
    for (u32 i = threadIdx.x % LANES; i < count; i += LANES) words[i] = 0;
    if (part.stream->kind != NUMBERS && threadIdx.x % LANES == 0) work->checkpoints[index].before = 0;
}

template <bool PRODUCTS>
static __device__ void emit_all(const DeltaJob *work) {
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->checkpoint_count; index += warps) {
        Part part;
        bool some = open_part(work, index, part);
        if (part.stream->rows) continue;
        if (!some)
            no_values(work, index, part);
        else if (part.stream->width == 4)
            emit<u32, PRODUCTS>(work, index, part);
        else
            emit<u64, PRODUCTS>(work, index, part);
    }
}

// The values of each tile, by a warp.
KERNEL_WITH(delta_emit, THREADS, 6)(const __grid_constant__ DeltaJob given) { emit_all<false>(&given); }

KERNEL_WITH(delta_emit_tensor, THREADS, 6)(const __grid_constant__ DeltaJob given) { emit_all<true>(&given); }

// The values of two chunks, by the lowest bits of their ranks: rows of one bitmap word have them from one chunk, or from it and the one before.
#define RING (2 * CHUNK)

// What a value becomes, as `Column` has it. Not read there each time, as the compiler does not know that nobody writes it.
struct Becomes {
    u32 convert;
    u32 argument;
    u32 unit;
    u32 units;
    u32 shift;  // `units` is two to the power of it; all bits: it is no power of two
    bool narrow;
};

// Its unit `number`, as `converted` in `fixed.cu` makes it.
static __device__ u64 unit_of(const Becomes &becomes, u64 value, u32 number) {
    switch (becomes.convert) {
    case BYTES: return value >> ((becomes.argument + number * becomes.unit) * 8);
    case DAYS: return (u64)((i64)(int)value * 86400000);
    case WIDEN_BIG_ENDIAN: {
        u32 low = __byte_perm((u32)value, 0, 0x0123), high = __byte_perm((u32)(value >> 32), 0, 0x0123);
        value = becomes.narrow ? low : (u64)low << 32 | high;
    }  // fall through: it is a number then
    default: {
        i64 wide = becomes.narrow ? (i64)(int)value : (i64)value;
        return number < 2 ? (u64)(wide >> (number * 32)) : (u64)(wide >> 63);
    }
    }
}

// `count` rows from row `row` of a tile on, of which some are not null: the first of those has the rank `rank`.
static __device__ void write_rows(const Becomes &becomes, u8 *output, u32 row, u32 count, u32 valid, u32 rank, const u64 *ring) {
    u32 units = becomes.units;
    for (u32 at = threadIdx.x % LANES; at < count * units; at += LANES) {
        u32 own = becomes.shift < 32 ? at >> becomes.shift : at / units;
        u64 result = 0;
        if (valid >> own & 1) result = unit_of(becomes, ring[(rank + __popc(valid & ones(own))) % RING], at - own * units);
        store_unit(output, becomes.unit, row * units + at, result);
    }
}

// The values of a tile of rows: those from the first one's rank on. They are made from where the tile of values begins that it is in, as the
// sums before it are not known otherwise.
template <bool PRODUCTS>
static __device__ void emit_rows(const DeltaJob *work, u64 index, u64 *ring) {
    u32 lane = threadIdx.x % LANES, stream_number = work->checkpoints[index].stream;
    const Stream *stream = &work->streams[stream_number];
    const Page *page = &work->job.pages[stream->page];
    const Column *column = &work->job.columns[page->column];
    const Found *found = &work->job.found[stream->page];
    if (found->failed || !stream->rows) return;
    u32 number = (u32)(index - stream->tiles), count = rows_of(page, number);
    u64 first = page->first + (u64)number * TILE;
    u32 units = column->units;
    Becomes becomes = {column->convert, column->argument, column->unit, units, ALL_LANES, column->width == 4};
    if ((units & (units - 1)) == 0) becomes.shift = __ffs(units) - 1;
    u8 *output = column->values + first * becomes.unit * units;
    const Checkpoint *checkpoints = work->checkpoints + stream->tiles;
    const Tiles &tiles = work->job.tiles;
    u32 base = tiles.bases[page->tiles + number], own = tiles.counts[page->tiles + number], end = base + own;
    // Of what is wrong nothing is made, but rows are zeros, so that there are some.
    if (own && (checkpoints[base / TILE].wrong || checkpoints[(end - 1) / TILE].wrong)) end = base;
    u32 bits = lane * 32 < count ? ones(count - lane * 32) : 0;
    if (column->validity) bits = load_bits(column->validity, first, count);
    if (end == base) bits = 0;
    u32 ends = base + sum_to_lane(__popc(bits)), row = 0;
    if (end > base) {
        u32 rank = base / TILE * TILE, deltas = found->values - 1;
        const Blocks *blocks = &work->blocks[stream_number];
        const Checkpoint *checkpoint = &checkpoints[base / TILE];
        u64 before = checkpoint->before;
        Cursor cursor = {};
        if (rank < deltas) cursor = {checkpoint->least, checkpoint->widths, checkpoint->mini, checkpoint->data, checkpoint->skip};
        for (; rank < end; rank += CHUNK) {
            u64 four[4];
            make_values<u64, PRODUCTS>(work, page, blocks, rank < deltas ? least(CHUNK, deltas - rank) : 0, cursor, before, four);
            if (rank + CHUNK <= base) continue;
            for (u32 i = 0; i < 4; i++) ring[(rank + lane * 4 + i) % RING] = four[i];
            __syncwarp();
            for (; row < count; row += LANES) {
                u32 after = __shfl_sync(ALL_LANES, ends, row / LANES), valid = __shfl_sync(ALL_LANES, bits, row / LANES);
                if (after > rank + CHUNK) break;
                write_rows(becomes, output, row, least(LANES, count - row), valid, after - __popc(valid), ring);
            }
            __syncwarp();
        }
    }
    for (; row < count; row += LANES) write_rows(becomes, output, row, least(LANES, count - row), 0, 0, ring);
}

template <bool PRODUCTS>
static __device__ void emit_all_rows(const DeltaJob *work, u64 *ring) {
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < work->checkpoint_count; index += warps) emit_rows<PRODUCTS>(work, index, ring);
}

// The values of each tile of rows, to where they stay, by a warp.
KERNEL_WITH(delta_rows, THREADS, 6)(const __grid_constant__ DeltaJob given) {
    __shared__ u64 rings[WARPS][RING];
    emit_all_rows<false>(&given, rings[threadIdx.x / LANES]);
}

KERNEL_WITH(delta_rows_tensor, THREADS, 6)(const __grid_constant__ DeltaJob given) {
    __shared__ u64 rings[WARPS][RING];
    emit_all_rows<true>(&given, rings[threadIdx.x / LANES]);
}
