"""Hand-written Triton for GPUs, over tables of pointers; `launches.py` runs it.

Every result has the bits of the eager kernels, but for sums of floats. A program takes one piece of
a tensor: a row of `pieces` has its tensor, its first value there, how many it has, its bucket, its
first value among those of all tensors, and how many codes it has and the first among those of all,
of which there are more than values where a block is filled up. Rows of a batch are the second
dimension of the grid.
"""

# Triton reads annotations itself, and takes no early return.
# mypy: ignore-errors
# ruff: noqa: RET505, RUF059
import triton
import triton.language as tl

ROUND = tl.constexpr(1.5 * 2**23)  # added and subtracted, it rounds floats below 2^22 to integers


@triton.jit
def _piece(pieces):
    row = pieces + 7 * tl.program_id(0).to(tl.int64)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)


@triton.jit
def _codes_of_piece(pieces):
    row = pieces + 7 * tl.program_id(0).to(tl.int64)
    return tl.load(row + 5), tl.load(row + 6)


@triton.jit
def _at(table, tensor, tensors):
    """Return the pointer to a tensor's values in this program's row."""
    place = tl.load(table + tl.program_id(1) * tensors + tensor)
    return place.to(tl.pointer_type(tl.float32))


@triton.jit
def _add_scaled(x, y, BY: tl.constexpr):
    """Return x + BY y, whose product is not rounded, as PyTorch's `add` does it."""
    return x + y if BY == 1 else tl.fma(y, tl.full(x.shape, BY, tl.float32), x)


@triton.jit
def _magnitude(v):
    """Return the bits of |v|, which are in the order of the magnitudes, with NaN above all."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _not_finite(v):
    return tl.max(_magnitude(v)) >= 0x7F800000


@triton.jit
def _statistics(v, inside, length, FIT: tl.constexpr):
    """Return what `_parameters` needs of values: two sums, a count, and the largest magnitude."""
    count = (length * 0).to(tl.int32)
    first, second, most = count.to(tl.float64), count.to(tl.float64), count
    if FIT == "largest" or FIT == "norm":
        most = tl.max(_magnitude(v))
    if FIT == "norm" or FIT == "rms" or FIT == "length" or FIT == "unbiased" or FIT == "biased":
        first = tl.sum(v.to(tl.float64) * v.to(tl.float64))
    elif FIT == "mean":
        first = tl.sum(tl.abs(v).to(tl.float64))
    elif FIT == "halves":
        first = tl.sum(v.to(tl.float64))
    elif FIT == "sides":
        first, second, count = _sums_of_sides(v, (v >= 0) & inside)
    return first, second, count, most


@triton.jit
def _sums_of_sides(v, above):
    """Return the sums of the values below and above, and how many are above."""
    below = tl.sum(tl.where(above, 0.0, v).to(tl.float64))
    return below, tl.sum(tl.where(above, v, 0.0).to(tl.float64)), tl.sum(above.to(tl.int32))


@triton.jit
def _mean(total, count):
    return (total / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)


@triton.jit
def _parameters(first, second, count, most, length, FIT: tl.constexpr):
    """Return up to three parameters of a bucket."""
    p = _mean(first, length)
    q, r = p, p
    if FIT == "largest":
        p = most.to(tl.float32, bitcast=True)
    elif FIT == "norm":
        largest, root = most.to(tl.float32, bitcast=True), tl.sqrt(first).to(tl.float32)
        p = tl.where((largest > root) | (largest != largest), largest, root)
    elif FIT == "rms" or FIT == "length" or FIT == "unbiased" or FIT == "biased":
        p = tl.sqrt(first / length.to(tl.float64)).to(tl.float32)
        q = p
    elif FIT == "sides":
        p, q = _mean(first, length - count), _mean(second, count)
    return p, q, r


@triton.jit
def _sorted(v, inside):
    """Return values in ascending order, with infinity for what is not inside."""
    bits = tl.where(inside, v, float("inf")).to(tl.int32, bitcast=True)
    bits = tl.sort(bits ^ ((bits >> 31) & 0x7FFFFFFF))
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _value_at(w, place, BLOCK: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, BLOCK) == place, w, 0.0))


@triton.jit
def _fixed_scale(most, length):
    """Return the power of two of levels.py `_scale`, for values up to `most`."""
    above = tl.maximum(most.to(tl.int32, bitcast=True) >> 23, 1)
    bits, left = 0 * length, length - 1
    while left > 0:
        bits += 1
        left = left // 2
    return ((176 - bits - above + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _whole(w, scale):
    """Return the nearest whole numbers below 2^51 to values in fixed point."""
    return (w.to(tl.float64) * scale + 6755399441055744.0) - 6755399441055744.0


@triton.jit
def _clamp_level(v, inside, length):
    """Return what levels.py `clamp_level` does of a bucket."""
    w = -_sorted(-tl.abs(v), inside)
    w = tl.where(inside, w, 0.0)
    most = tl.max(_magnitude(v)).to(tl.float32, bitcast=True)
    scale = _fixed_scale(most, length)
    sums = tl.cumsum(_whole(w, scale), 0)
    crossings = (sums / length.to(tl.float64) / scale).to(tl.float32)
    level = tl.max(tl.where(inside, tl.minimum(w, crossings), 0.0))
    return tl.where(most < float("inf"), level, most)


@triton.jit
def _levels(
    v, inside, length, FIT: tl.constexpr, BASE: tl.constexpr, LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return what levels.py `quantile_levels` or `orq_levels` does of a bucket."""
    w, k, last = _sorted(v, inside), tl.arange(0, LEVELS), (length - 1).to(tl.int32)
    low, high = _value_at(w, 0, BLOCK), _value_at(w, last, BLOCK)
    if FIT == "quantiles":
        places = (2 * tl.minimum(k, BASE - 1) * last + (BASE - 1)) // (2 * (BASE - 1))
    else:
        scale = _fixed_scale(tl.maximum(-low, high), length)
        whole = _whole(tl.where(inside, w, 0.0), scale)
        sums, places, count = tl.cumsum(whole, 0), tl.where(k > 0, last, 0), 1
        while count < BASE - 1:  # intervals are halved: levels.py `_halve`
            left = tl.gather(places, tl.minimum(k // 2, count), 0)
            right = tl.gather(places, tl.minimum(k // 2 + 1, count), 0)
            below, above = tl.gather(whole, left, 0), tl.gather(whole, right, 0)
            total = tl.gather(sums, right, 0) - (tl.gather(sums, left, 0) - below)
            total -= (right - left + 1).to(tl.float64) * below
            c = (total / tl.where(above > below, above - below, 1.0)).to(tl.int32)
            middle = tl.maximum(right - tl.maximum(c, 0), left)
            places = tl.where(k % 2 == 1, middle, left)
            count = 2 * count
    finite = (low > -float("inf")) & (high < float("inf"))
    return tl.where(finite, tl.gather(w, places, 0) + 0.0, float("nan"))


@triton.jit
def _words(index, keys):
    """Return random words, as noise.py `random_words` does."""
    return _mixed(index, tl.load(keys), tl.load(keys + 1))


@triton.jit
def _mixed(index, key, inner):
    x = index ^ key
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x21F0AAAD + inner
    x = x ^ ((x >> 15) & 0x1FFFF)
    return x * 0x735A2D97


@triton.jit
def _signs(first, i, key, inner):
    """Return which signs hadamard.py `_flip` turns, of the block that begins at an element."""
    words = _mixed(first + (i >> 12) * 256 + (i & 255), key, inner)
    return (words << ((i >> 8) & 15)) < 0


@triton.jit
def _sums(x, i, size):
    """Return H x of a block, in the order of hadamard.py `_sums`."""
    step = 1
    while step < size:
        other = tl.gather(x, i ^ step, 0)
        x = tl.where((i & step) != 0, other - x, x + other)
        step *= 2
    return x


@triton.jit
def _unit(size):
    """Return 1 / sqrt(size) of a power of two, as float32 rounds it."""
    unit, left = 1.0 + 0 * size.to(tl.float32), size
    while left > 2:
        unit *= 0.5
        left = left // 4
    return tl.where(left == 2, unit * 0.7071067690849304, unit)


@triton.jit
def _rotate(x, i, size, first, keys):
    """Return a block rotated, as hadamard.py `rotate` does."""
    key, inner = tl.load(keys), tl.load(keys + 1)
    unit = _unit(size)
    x = x * unit
    x = _sums(tl.where(_signs(first, i, key, inner), -x, x), i, size) * unit
    other, other_inner = inner ^ 0x5BD1E995, key ^ 0x5BD1E995
    return _sums(tl.where(_signs(first, i, other, other_inner), -x, x), i, size)


@triton.jit
def _rotate_back(y, i, size, first, keys):
    key, inner = tl.load(keys), tl.load(keys + 1)
    unit = _unit(size)
    y = _sums(y * unit, i, size) * unit
    other, other_inner = inner ^ 0x5BD1E995, key ^ 0x5BD1E995
    y = _sums(tl.where(_signs(first, i, other, other_inner), -y, y), i, size)
    return tl.where(_signs(first, i, key, inner), -y, y)


@triton.jit
def _share(v, scale):
    """Return v / scale within [-1, 1]."""
    unit = tl.where(scale > 0, scale, 1.0)
    return tl.minimum(tl.maximum(tl.div_rn(v, unit), -1.0), 1.0)


@triton.jit
def _code(
    v, index, keys, fitted, levels, p, q,
    CODE: tl.constexpr, BASE: tl.constexpr, HIGHEST: tl.constexpr,
):  # fmt: skip
    """Return the codes of values of a bucket with the parameters p and q, or those at `fitted`."""
    if CODE == "grid":
        END: tl.constexpr = HIGHEST * (1 << 22)
        place = tl.minimum(tl.maximum((_share(v, p) * END).to(tl.int32), -END), END)
        return (place + (_words(index, keys) >> 9) + (END + (1 << 22))) >> 23
    elif CODE == "nearest":
        MIDDLE: tl.constexpr = HIGHEST // 2
        place = ((_share(v, p) * MIDDLE + ROUND) - ROUND).to(tl.int32)
        return tl.minimum(tl.maximum(place, -MIDDLE), MIDDLE) + MIDDLE
    elif CODE == "reaches":
        return (v >= q).to(tl.int32)
    elif CODE == "nearest_level":
        unit = tl.where(q < float("inf"), q, 1.0)
        code, half = tl.zeros_like(v).to(tl.int32), BASE // 2
        while half > 0:
            above = v >= tl.load(levels + BASE + code + (half - 1)) * unit
            code = tl.where(above, code + half, code)
            half = half // 2
        return code
    else:  # a table
        place, count = tl.zeros_like(v).to(tl.int32), BASE
        while count > 2:
            half = count // 2
            above = v >= tl.load(fitted + tl.minimum(place + half, BASE - 1))
            place = tl.where(above, place + half, place)
            count = half + 1
        below = tl.load(fitted + tl.minimum(place, BASE - 1))
        gap = tl.load(fitted + tl.minimum(place + 1, BASE - 1)) - below
        draw = ((_words(index, keys) >> 8) & 0xFFFFFF).to(tl.float32) * 2.0**-24
        up = draw < tl.div_rn(v - below, tl.where(gap > 0, gap, 1.0))
        return tl.minimum(place + up.to(tl.int32), BASE - 1)


@triton.jit
def _value(
    code, sent, levels, VALUE: tl.constexpr, BASE: tl.constexpr, HIGHEST: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Return the values of codes of a bucket with the parameters at `sent`."""
    if VALUE == "grid":
        centered = code.to(tl.float32) - HIGHEST / 2
        return tl.div_rn(centered, HIGHEST / 2 + tl.zeros_like(centered)) * tl.load(sent)
    elif VALUE == "signed":
        return tl.where(code > 0, tl.load(sent), -tl.load(sent))
    elif VALUE == "level":
        return tl.load(sent + STEP * tl.minimum(code, BASE - 1))
    else:
        return tl.load(levels + code) * tl.load(sent)


@triton.jit
def code_buckets(
    x, before, left, pieces, starts, keys, fitted, levels, codes,
    tensors, rows_of_starts, buckets, stride,
    ALPHA: tl.constexpr, KEEP: tl.constexpr,
    FIT: tl.constexpr, CODE: tl.constexpr, VALUE: tl.constexpr,
    BASE: tl.constexpr, HIGHEST: tl.constexpr, FITTED: tl.constexpr, STEP: tl.constexpr,
    LEVELS: tl.constexpr, ROTATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fit the parameters of buckets, code their values, and write what the codes leave out.

    Without `codes`, only fit. With `before`, code x + ALPHA before, and write to `left` that minus
    what is sent plus KEEP before.
    """
    tensor, start, length, bucket, place = _piece(pieces)
    row = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < length
    v = tl.load(_at(x, tensor, tensors) + start + i, inside, other=0.0)
    if before is not None:
        old = tl.load(_at(before, tensor, tensors) + start + i, inside, other=0.0)
        v = _add_scaled(v, old, ALPHA)
    first = place.to(tl.int32)
    if keys is not None:
        keys += 2 * row
        first += tl.load(starts + row * rows_of_starts * tensors + tensor)
    length, place = _codes_of_piece(pieces)
    if ROTATES:
        inside = i < length
        v = tl.where(inside, _rotate(v, i, length, first, keys), 0.0)
    fitted += (row * buckets + bucket) * FITTED
    p, q = 0.0, 0.0
    if FIT == "given":
        p = tl.load(fitted)
        if CODE == "nearest_level" or FITTED == 3:
            q = tl.load(fitted + 1)
    elif CODE == "table":
        k = tl.arange(0, LEVELS)
        tl.store(fitted + k, _levels(v, inside, length, FIT, BASE, LEVELS, BLOCK), k < BASE)
        tl.debug_barrier()  # codes are found among what is stored
    elif FIT == "clamp":
        p = _clamp_level(v, inside, length)
        tl.store(fitted, p)
        tl.debug_barrier()
    else:
        total, second, count, most = _statistics(v, inside, length, FIT)
        p, q, r = _parameters(total, second, count, most, length, FIT)
        if FIT == "halves":
            q = p  # if it is NaN, all values count as below it, as they do in rounding
            total, second, count = _sums_of_sides(v, (v >= q) & inside)
            p, r = _mean(total, length - count), _mean(second, count)
        elif FIT == "unbiased" or FIT == "biased":
            code = _code(v, i, keys, fitted, levels, p, q, CODE, BASE, HIGHEST)
            level = tl.load(levels + code).to(tl.float64)
            product = tl.sum(v.to(tl.float64) * level)
            if FIT == "biased":
                scale = product / tl.sum(tl.where(inside, level * level, 0.0))
            else:
                scale = total / product
            p = tl.where(product == 0, 0.0, scale).to(tl.float32)
        tl.store(fitted, p)
        if FITTED > 1:
            tl.store(fitted + 1, q)
        if FITTED > 2:
            tl.store(fitted + 2, r)
        if CODE == "reaches" and FITTED < 3:
            q = 0.0
        if before is not None:
            tl.debug_barrier()  # what is left out is computed from what is stored
    if codes is not None:
        code = _code(v, first + i, keys, fitted, levels, p, q, CODE, BASE, HIGHEST)
        tl.store(codes + row * stride + place + i, code.to(tl.uint8), inside)
        if before is not None:
            # Adding 0 turns -0 into 0, as where decoded values are added to zeros.
            rest = v - (_value(code, fitted, levels, VALUE, BASE, HIGHEST, STEP) + 0.0)
            if KEEP != 0:
                rest = _add_scaled(rest, old, KEEP)
            tl.store(_at(left, tensor, tensors) + start + i, rest, inside)


@triton.jit
def add_up(
    x, before, pieces, sums, tensors, count_of_pieces,
    ALPHA: tl.constexpr, FIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the statistics of pieces of large buckets, float64 `[rows, pieces, 4]`."""
    tensor, start, length, bucket, place = _piece(pieces)
    i = tl.arange(0, BLOCK)
    inside = i < length
    v = tl.load(_at(x, tensor, tensors) + start + i, inside, other=0.0)
    if before is not None:
        old = tl.load(_at(before, tensor, tensors) + start + i, inside, other=0.0)
        v = _add_scaled(v, old, ALPHA)
    if FIT == "deviation":  # of differences from the first value: scales.py `shifted`
        v = v.to(tl.float64) - tl.load(_at(x, tensor, tensors)).to(tl.float64)
        v = tl.where(inside, v, 0.0)
        first, second, count, most = tl.sum(v), tl.sum(v * v), tensor, tensor
    else:
        first, second, count, most = _statistics(v, inside, length, FIT)
    sums += 4 * (tl.program_id(1) * count_of_pieces + tl.program_id(0))
    tl.store(sums, first)
    tl.store(sums + 1, second)
    tl.store(sums + 2, count.to(tl.float64))
    tl.store(sums + 3, most.to(tl.float64))


@triton.jit
def fit_sums(
    sums, ends, lengths, fitted, count_of_pieces, buckets,
    FIT: tl.constexpr, CLIP: tl.constexpr, FITTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the parameters of large buckets; `ends` says behind which piece each begins or ends."""
    bucket, row = tl.program_id(0), tl.program_id(1)
    end = tl.load(ends + bucket + 1)
    i = tl.load(ends + bucket) + tl.arange(0, BLOCK)
    first = tl.zeros([BLOCK], tl.float64)
    second, count, most = first, first, first
    while tl.min(i) < end:
        place = sums + 4 * (row * count_of_pieces + i)
        first += tl.load(place, i < end, other=0.0)
        second += tl.load(place + 1, i < end, other=0.0)
        count += tl.load(place + 2, i < end, other=0.0)
        most = tl.maximum(most, tl.load(place + 3, i < end, other=0.0))
        i += BLOCK
    numbers = tl.sum(count).to(tl.int32), tl.max(most).to(tl.int32)
    length = tl.load(lengths + bucket)
    if FIT == "deviation":  # its parameter is a limit: scales.py `_limits`
        mean = tl.sum(first) / length.to(tl.float64)
        variance = tl.sum(second) / length.to(tl.float64) - mean * mean
        sigma = tl.sqrt(tl.where(variance < 0, 0.0, variance))
        p = tl.where(sigma == 0, float("inf"), CLIP * sigma).to(tl.float32)
    else:
        p, q, r = _parameters(tl.sum(first), tl.sum(second), numbers[0], numbers[1], length, FIT)
    fitted += (row * buckets + bucket) * FITTED
    tl.store(fitted, p)
    if FITTED > 1:
        tl.store(fitted + 1, q)


@triton.jit
def clip_each(x, limits, pieces, out, tensors, stride, BLOCK: tl.constexpr):
    """Write values within the limit of their tensor, or the limit if that is NaN."""
    tensor, start, length, bucket, place = _piece(pieces)
    i = tl.arange(0, BLOCK)
    v = tl.load(_at(x, tensor, tensors) + start + i, i < length, other=0.0)
    limit = tl.load(limits + tl.program_id(1) * tensors + tensor)
    v = tl.where(v < -limit, -limit, v)
    v = tl.where(v > limit, limit, v)
    v = tl.where(limit == limit, v, limit)
    tl.store(out + tl.program_id(1) * stride + place + i, v, i < length)


@triton.jit
def _number(packed, words, first, i, BASE: tl.constexpr, DIGITS: tl.constexpr, BITS: tl.constexpr):
    """Return the codes behind the first one in a message, as radix.py lays them out."""
    digit = i + (first % DIGITS).to(tl.int32)
    first, word = first // DIGITS, digit // DIGITS
    number = tl.zeros_like(i)
    for low in tl.static_range(0, BITS, 8):
        WIDTH: tl.constexpr = min(8, BITS - low)
        if WIDTH == 8:
            part = tl.load(packed + first + word).to(tl.int32)
            packed += words
        else:
            bit = word * WIDTH + ((first * WIDTH) % 8).to(tl.int32)
            place = packed + (first * WIDTH) // 8 + bit // 8
            part = tl.load(place).to(tl.int32)
            if 8 % WIDTH != 0:
                part |= tl.load(place + 1, bit % 8 + WIDTH > 8, other=0).to(tl.int32) << 8
            part = (part >> (bit % 8)) & ((1 << WIDTH) - 1)
        number |= part << low
    if DIGITS > 1:
        digit = digit % DIGITS
        for k in tl.static_range(1, DIGITS):
            number = tl.where(digit >= k, number // BASE, number)
        number = number % BASE
    return number


@triton.jit
def decode_buckets(
    digits, sent, levels, pieces, starts, keys, out,
    tensors, rows_of_starts, workers, of_worker, of_row, words, stride, buckets,
    INTO: tl.constexpr, VALUE: tl.constexpr, BASE: tl.constexpr, HIGHEST: tl.constexpr,
    SENT: tl.constexpr, DIGITS: tl.constexpr, BITS: tl.constexpr,
    ROTATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the mean of all workers' values to `out`, or add or subtract them, in their order."""
    tensor, _, length, bucket, place = _piece(pieces)
    row, rows = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    i = tl.arange(0, BLOCK)
    inside = i < length
    at = out + row * stride + place + i
    if ROTATES:
        first = place.to(tl.int32)
        starts += row * rows_of_starts * tensors + tensor
        keys += 2 * row
    length, place = _codes_of_piece(pieces)
    read = tl.minimum(i, (length - 1).to(tl.int32))  # lies in the message
    total = tl.zeros([BLOCK], tl.float32) if INTO == "write" else tl.load(at, inside, other=0.0)
    digits += row * of_row
    sent += (row * buckets + bucket) * SENT
    for _ in range(workers):
        code = _number(digits, words, place, read, BASE, DIGITS, BITS)
        value = _value(code, sent, levels, VALUE, BASE, HIGHEST, 1)
        if ROTATES:
            value = _rotate_back(value + 0.0, i, length, first + tl.load(starts), keys)
            starts += rows * rows_of_starts * tensors
            keys += 2 * rows
        digits += of_worker
        sent += rows * buckets * SENT
        if INTO == "subtract":
            total -= value + 0.0
        else:
            total += value
    if INTO == "write":
        total = tl.div_rn(total, tl.zeros_like(total) + workers)
    tl.store(at, total, inside)


@triton.jit
def replace_each(x, y, pieces, found, tensors, BLOCK: tl.constexpr):
    """Replace values of x by those of y, and note for each piece whether one was not finite."""
    tensor, start, length, bucket, place = _piece(pieces)
    i = tl.arange(0, BLOCK)
    to = _at(x, tensor, tensors) + start + i
    old = tl.load(to, i < length, other=0.0)
    new = tl.load(_at(y, tensor, tensors) + start + i, i < length, other=0.0)
    tl.store(to, new, i < length)
    tl.store(found + tl.program_id(0), _not_finite(old) | _not_finite(new))


@triton.jit
def blank_each(x, pieces, bad, tensors, BLOCK: tl.constexpr):
    """Replace all values by NaN if `bad` is true."""
    if tl.load(bad):
        tensor, start, length, bucket, place = _piece(pieces)
        i = tl.arange(0, BLOCK)
        nan = tl.full([BLOCK], float("nan"), tl.float32)
        tl.store(_at(x, tensor, tensors) + start + i, nan, i < length)


@triton.jit
def restore_each(x, y, pieces, bad, tensors, BLOCK: tl.constexpr):
    """Replace values of x by those of y if `bad` is true."""
    if tl.load(bad):
        tensor, start, length, bucket, place = _piece(pieces)
        i = tl.arange(0, BLOCK)
        old = tl.load(_at(y, tensor, tensors) + start + i, i < length)
        tl.store(_at(x, tensor, tensors) + start + i, old, i < length)


@triton.jit
def count_digits(
    x, before, left, keys, found, pieces, thresholds, histogram, tensors, stride,
    ALPHA: tl.constexpr, SHIFT: tl.constexpr, DONE: tl.constexpr, BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the first digits of magnitudes, or those at SHIFT of keys with known bits from DONE on.

    With `before`, the values are x + ALPHA before, and are written to `left`.
    """
    tensor, start, length, bucket, place = _piece(pieces)
    slot = tl.program_id(1) * tensors + tensor
    i = tl.arange(0, BLOCK)
    inside = i < length
    if keys is None:
        v = tl.load(_at(x, tensor, tensors) + start + i, inside, other=0.0)
        if before is not None:
            old = tl.load(_at(before, tensor, tensors) + start + i, inside, other=0.0)
            v = _add_scaled(v, old, ALPHA)
            tl.store(_at(left, tensor, tensors) + start + i, v, inside)
        digits = _magnitude(v) >> SHIFT
    else:
        inside = inside & (start + i < tl.load(found + 2 * slot))
        keys += tl.program_id(1) * stride + place + i
        key = tl.load(keys, inside, other=0)
        inside = inside & (key >> DONE == tl.load(thresholds + slot) >> DONE)
        digits = ((key >> SHIFT) & (BINS - 1)).to(tl.int32)
    if tl.max(inside.to(tl.int32)) > 0:
        counts = tl.histogram(digits, BINS, mask=inside)
        tl.atomic_add(histogram + slot * BINS + tl.arange(0, BINS), counts, counts > 0)


@triton.jit
def find_digit(
    histogram, thresholds, missing, found, counts,
    SHIFT: tl.constexpr, DONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find a digit of each tensor's least key that is sent, and empty the histogram."""
    tensor, tensors = tl.program_id(0), tl.num_programs(0)
    slot = tl.program_id(1) * tensors + tensor
    i = tl.arange(0, BLOCK)
    each = tl.load(histogram + slot * BLOCK + i)
    tl.store(histogram + slot * BLOCK + i, tl.zeros_like(each))
    if DONE == 0:  # the first one
        wanted, known = tl.load(counts + tensor), 0 * tl.load(counts + tensor)
        tl.store(found + 2 * slot, 0)
        tl.store(found + 2 * slot + 1, 0)
    else:
        wanted, known = tl.load(missing + slot), tl.load(thresholds + slot) >> DONE << DONE
    reach = tl.cumsum(each, 0, reverse=True)
    digit = tl.sum((reach >= wanted).to(tl.int32)) - 1
    tl.store(missing + slot, wanted - tl.sum(tl.where(i == digit, reach - each, 0)))
    tl.store(thresholds + slot, known | (digit.to(tl.int64) << SHIFT))


@triton.jit
def collect_keys(
    x, keys, found, chosen, pieces, thresholds, firsts, tensors, stride, stride_of_chosen,
    LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keys of values that reach the thresholds; or the places of such keys, to `chosen`.

    A key has a value's magnitude above LOW bits, which fall from the tensor's first place on.
    """
    tensor, start, length, bucket, place = _piece(pieces)
    row = tl.program_id(1)
    slot = row * tensors + tensor
    i = tl.arange(0, BLOCK)
    inside = i < length
    LAST: tl.constexpr = (1 << LOW) - 1
    keys += row * stride + place - start
    if chosen is None:
        v = tl.load(_at(x, tensor, tensors) + start + i, inside, other=0.0)
        key = (_magnitude(v).to(tl.int64) << LOW) | (LAST - (start + i))
        counter = found + 2 * slot
    else:
        inside = inside & (start + i < tl.load(found + 2 * slot))
        key = tl.load(keys + start + i, inside, other=0)
        counter = found + 2 * slot + 1
    inside = inside & (key >= tl.load(thresholds + slot))
    count = tl.sum(inside.to(tl.int32))
    if count > 0:
        at = tl.atomic_add(counter, count) + tl.cumsum(inside.to(tl.int32), 0) - 1
        if chosen is None:
            tl.store(keys + at, key, inside)
        else:
            chosen += row * stride_of_chosen + tl.load(firsts + tensor) + at
            tl.store(chosen, place - start + LAST - (key & LAST), inside)


@triton.jit
def take_out(x, chosen, values, stride, count, BLOCK: tl.constexpr):
    """Move values at chosen places of rows out of them, which leaves 0."""
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = x + row * stride + tl.load(chosen + row * count + i, i < count, other=0)
    tl.store(values + row * count + i, tl.load(at, i < count), i < count)
    tl.store(at, tl.zeros([BLOCK], tl.float32), i < count)


@triton.jit
def average_sparse(
    positions, values, firsts, pieces, out, workers, total, stride,
    STEPS: tl.constexpr, WORKERS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the mean of all workers' values at ascending positions in tensors, in their order."""
    tensor, start, length, bucket, place = _piece(pieces)
    row, rows = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    i = tl.arange(0, BLOCK)
    out += row * stride + place
    tl.store(out + i, tl.zeros([BLOCK], tl.float32), i < length)
    first, end = tl.load(firsts + tensor), tl.load(firsts + tensor + 1)
    worker = tl.arange(0, WORKERS)
    of_workers = positions + (worker * rows + row) * total
    low = tl.zeros([WORKERS], tl.int64) + first
    high = tl.zeros([WORKERS], tl.int64) + end
    for _ in range(STEPS):  # of a search for the first position of this piece
        middle, left = (low + high) // 2, (low < high) & (worker < workers)
        below = tl.load(of_workers + middle, left, other=0) < start
        low = tl.where(left & below, middle + 1, low)
        high = tl.where(left & (below == 0), middle, high)
    for k in range(workers):
        tl.debug_barrier()  # the values of another worker lie elsewhere in the program
        at = tl.sum(tl.where(worker == k, low, 0)) + tl.arange(0, CHUNK)
        message = (k * rows + row) * total
        more = 1
        while more > 0:
            position = tl.load(positions + message + at, at < end, other=0)
            inside = (at < end) & (position < start + length)
            to = out + (position - start)
            value = tl.load(values + message + at, inside, other=0.0)
            tl.store(to, tl.load(to, inside, other=0.0) + value, inside)
            more = tl.min(inside.to(tl.int32))
            at += CHUNK
    tl.debug_barrier()
    sums = tl.load(out + i, i < length, other=0.0)
    tl.store(out + i, tl.div_rn(sums, tl.zeros_like(sums) + workers), i < length)


@triton.jit
def _shape(shapes, matrix):
    """Return n, m and r of a matrix, and where its P and its Q begin."""
    row = shapes + 5 * matrix
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)


@triton.jit
def _tile(tiles):
    row = tiles + 3 * tl.program_id(0)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2)


@triton.jit
def _factor(x, i, length, RANK: tl.constexpr, rank):
    """Return values of a factor's columns, `[values, RANK]`; what it has not is 0."""
    r = tl.arange(0, RANK)
    inside = (i[:, None] < length) & (r[None, :] < rank)
    return tl.load(x + r[None, :] * length + i[:, None], inside, other=0.0)


@triton.jit
def multiply(
    g, e, m, factor, out, shapes, tiles, matrices, size,
    ALPHA: tl.constexpr, BACK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Write rows of P = M Q or, with BACK, of Q = M^T P. With `e`, M = G + ALPHA E is written, too.

    A tile begins at a row of M or, with BACK, at a column, and has all values of these.
    """
    matrix, row, column = _tile(tiles)
    n, width, rank, at_p, at_q = _shape(shapes, matrix)
    g = _at(g, matrix, matrices)
    if e is not None:
        e, m = _at(e, matrix, matrices), _at(m, matrix, matrices)
    i, j, r = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS), tl.arange(0, RANK)
    sums = tl.zeros([COLUMNS if BACK else ROWS, RANK], tl.float32)
    done, end = 0 * n, n if BACK else width
    while done < end:
        place = i[:, None] * width + j[None, :]
        inside = (i[:, None] < n) & (j[None, :] < width)
        x = tl.load(g + place, inside, other=0.0)
        if e is not None:
            old = tl.load(e + place, inside, other=0.0)
            x = _add_scaled(x, old, ALPHA)
            tl.store(m + place, x, inside)
        if BACK:
            other = _factor(factor + at_p, i, n, RANK, rank)
            sums += tl.dot(tl.trans(x), other, input_precision="ieee")
            done += ROWS
            i += ROWS
        else:
            other = _factor(factor + at_q, j, width, RANK, rank)
            sums += tl.dot(x, other, input_precision="ieee")
            done += COLUMNS
            j += COLUMNS
    out += tl.program_id(1) * size + (at_q if BACK else at_p)
    k, length = (column + tl.arange(0, COLUMNS), width) if BACK else (i, n)
    inside = (k[:, None] < length) & (r[None, :] < rank)
    tl.store(out + r[None, :] * length + k[:, None], sums, inside)


@triton.jit
def multiply_out(
    p, q, u, shapes, tiles, matrices, step_p, step_q,
    SUBTRACTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Write a tile of P Q^T to matrices, or subtract it."""
    matrix, row, column = _tile(tiles)
    n, width, rank, at_p, at_q = _shape(shapes, matrix)
    i, j = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    left = _factor(p + tl.program_id(1) * step_p + at_p, i, n, RANK, rank)
    right = _factor(q + tl.program_id(1) * step_q + at_q, j, width, RANK, rank)
    x = tl.dot(left, tl.trans(right), input_precision="ieee")
    at = _at(u, matrix, matrices) + i[:, None] * width + j[None, :]
    inside = (i[:, None] < n) & (j[None, :] < width)
    if SUBTRACTS:
        x = tl.load(at, inside, other=0.0) - x
    tl.store(at, x, inside)


@triton.jit
def _dot(a, b, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK).to(tl.int64)
    sums = tl.zeros([BLOCK], tl.float64)
    while tl.min(i) < n:
        x = tl.load(a + i, i < n, other=0.0).to(tl.float64)
        sums += x * tl.load(b + i, i < n, other=0.0).to(tl.float64)
        i += BLOCK
    return tl.sum(sums)


@triton.jit
def _add_to(x, by, other, scale, n, BLOCK: tl.constexpr):
    """Replace x by (x + by other) / scale."""
    i = tl.arange(0, BLOCK).to(tl.int64)
    while tl.min(i) < n:
        new = tl.load(x + i, i < n).to(tl.float64)
        if other is not None:
            new += by * tl.load(other + i, i < n).to(tl.float64)
        tl.store(x + i, (new / scale).to(tl.float32), i < n)
        i += BLOCK
    tl.debug_barrier()


@triton.jit
def _normalize(x, n, BLOCK: tl.constexpr):
    """Scale a column to norm 1, unless it is zero, and return the norm that it had."""
    norm = tl.sqrt(_dot(x, x, n, BLOCK))
    _add_to(x, 0.0, None, tl.where(norm > 0, norm, 1.0), n, BLOCK)
    return norm


@triton.jit
def orthonormalize(p, shapes, BLOCK: tl.constexpr):
    """Make the columns of a P orthonormal by Gram-Schmidt, as low_rank.cpp `orthogonalize` does."""
    n, width, rank, at_p, at_q = _shape(shapes, tl.program_id(0))
    p += at_p
    column = 0 * rank
    while column < rank:
        x = p + column * n
        norm = _normalize(x, n, BLOCK)
        for _ in range(2):
            k = 0 * rank
            while k < column:
                _add_to(x, -_dot(p + k * n, x, n, BLOCK), p + k * n, 1.0, n, BLOCK)
                k += 1
            if column > 0:
                norm = _normalize(x, n, BLOCK)
        if (column > 0) & (norm <= 0.5):  # it is dependent; NaN stays
            _add_to(x, -1.0, x, 1.0, n, BLOCK)
        column += 1


@triton.jit
def restart_columns(qs, fresh, out, shapes, BLOCK: tl.constexpr):
    """Write columns of Q over their largest magnitude, or fresh ones for 0 and what is infinite."""
    matrix, column = tl.program_id(0), tl.program_id(1)
    n, width, rank, at_p, at_q = _shape(shapes, matrix)
    if column < rank:
        q = tl.load(qs + matrix).to(tl.pointer_type(tl.float32)) + column * width
        i = tl.arange(0, BLOCK).to(tl.int64)
        most = tl.zeros([BLOCK], tl.int32)
        while tl.min(i) < width:
            most = tl.maximum(most, _magnitude(tl.load(q + i, i < width, other=0.0)))
            i += BLOCK
        largest = tl.max(most)
        scale = largest.to(tl.float32, bitcast=True)
        kept = (largest > 0) & (largest < 0x7F800000)
        i = tl.arange(0, BLOCK).to(tl.int64)
        while tl.min(i) < width:
            at = at_q + column * width + i
            old, new = tl.load(q + i, i < width), tl.load(fresh + at, i < width)
            old = tl.div_rn(old, tl.zeros_like(old) + scale)
            tl.store(out + at, tl.where(kept, old, new), i < width)
            i += BLOCK
