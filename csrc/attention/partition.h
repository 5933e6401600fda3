// One partition of keys and values for a few queries at once: scores, softmax, weighted sum.
#pragma once

#include "attention/states.h"
#include "attention/words.h"

namespace corekit {
namespace COREKIT_LEVEL {

// What fits the registers: rows times vectors of scores, and of values; more rows where words are floats already. A row's sums have the
// same order whatever fits.
#if defined(__AVX512F__)
template <class Words> constexpr int max_rows = Words::numbers == 1 ? 6 : 4;
constexpr int max_score_vectors = 4, max_value_vectors = 4;
#elif defined(__AVX2__)
template <class Words> constexpr int max_rows = 3;
constexpr int max_score_vectors = 1, max_value_vectors = 2;
#else // sixteen lanes are many registers, and to unroll more of them takes compilers minutes
template <class Words> constexpr int max_rows = 1;
constexpr int max_score_vectors = 1, max_value_vectors = 1;
#endif
constexpr int num_halves = partition_length / half_length;
constexpr float masked = -1e30f;

// Where eight positions of a partition lie: word w of their keys at keys[half] + w * block_size words; rows of values at values[half].
struct Places {
    const uint8_t *keys[num_halves];
    const uint8_t *values[num_halves];
    const uint8_t *next_keys[num_halves]; // of the partition that the thread computes next
};

// Positions of the partition that each row sees: first .. end - 1, none if end <= first; and the range of all.
struct Seen {
    int first[max_rows_at_once], end[max_rows_at_once];
    int first_of_all, end_of_all;
};

// Scratch of one call: scores of the rows, and values of halves that are seen in part.
struct Work {
    float (*scores)[partition_length]; // weights later
    uint8_t *edges;                    // two halves of values
};

// Blocks are anywhere, so the processor cannot foresee them: what is read next goes to the second cache half a partition ahead, values
// while keys are read, keys of the next partition while values are, one line for each that is read. Exactly so where keys and values
// have as many dims; elsewhere some lines are left out, or fetched from behind, which does no harm.
COREKIT_INLINE const uint8_t *value_line(const Places &places, int vector, size_t word) {
    return (word % 2 ? places.values[2 * vector + 1] : places.values[2 * vector]) + word / 2 * 64;
}

template <bool whole> COREKIT_INLINE const uint8_t *next_key_line(const Shape &shape, const Places &places, int half, size_t line) {
    if (!whole) return places.next_keys[half] + line * 64;
    return places.next_keys[half & ~1] + ((half & 1) * size_t(shape.key_words / 2) + line) * size_t(shape.block_size) * 4;
}

template <class Words, int rows, int vectors, bool whole, bool ahead>
COREKIT_INLINE void scores_of(const Shape &shape, const Places &places, int vector, const float *query, float (*scores)[partition_length]) {
    const size_t step = size_t(shape.block_size) * 4, words = size_t(shape.key_words);
    const uint8_t *const *at = places.keys + 2 * vector;
    F32x16 sum[rows][vectors];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = zero();
    for (size_t w = 0; w < words; w++) {
        Bytes64 keys[vectors];
        for (int v = 0; v < vectors; v++) {
            keys[v] = whole ? load_bytes(at[2 * v] + w * step) : load_two(at[2 * v] + w * step, at[2 * v + 1] + w * step);
            if (ahead) prefetch_far(value_line(places, vector + v, w));
        }
        for (int i = 0; i < Words::numbers; i++) {
            F32x16 x[vectors];
            for (int v = 0; v < vectors; v++) x[v] = Words::number(keys[v], i);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < vectors; v++) sum[r][v] = fma(x[v], set1(query[(r * words + w) * Words::numbers + i]), sum[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) store(scores[r] + 16 * (vector + v), sum[r][v]);
}

// Scales, caps and masks a row's scores and makes weights of them; its maximum and the sum of its weights. A score that is no number
// makes the sum no number, which exp alone would hide.
COREKIT_INLINE void softmax(const Shape &shape, const Seen &seen, int row, float *scores, float *most, float *total) {
    const int first = seen.first_of_all / 16, end = (seen.end_of_all + 15) / 16;
    F32x16 largest = set1(no_score), sum = zero();
    for (int v = first; v < end; v++) {
        F32x16 x = mul(load(scores + 16 * v), set1(shape.scale));
        if (shape.soft_cap != 0) x = fma(x, zero(), mul(tanh(div(x, set1(shape.soft_cap))), set1(shape.soft_cap)));
        const int low = seen.first[row] - 16 * v, high = seen.end[row] - 16 * v;
        if (low > 0 || high < 16) {
            x = keep_first(x, high < 0 ? 0 : high > 16 ? 16 : high, set1(masked));
            x = keep_first(set1(masked), low < 0 ? 0 : low > 16 ? 16 : low, x);
        }
        store(scores + 16 * v, x);
        largest = max(x, largest);
    }
    *most = reduce_max(largest);
    for (int v = first; v < end; v++) {
        const F32x16 below = sub(load(scores + 16 * v), set1(*most));
        const F32x16 weight = exp(below);
        sum = add(sum, fma(below, zero(), weight));
        store(scores + 16 * v, weight);
    }
    *total = reduce_add(sum);
}

template <class Words, int rows, int vectors, bool whole, bool ahead>
COREKIT_INLINE void sums_of(const Shape &shape, const Places &places, const uint8_t *const *values, int first, int end, int lane,
                            const float (*weights)[partition_length], const Joint *joints, float *states) {
    constexpr int rows_of_half = half_length / Words::numbers;
    const size_t step = size_t(shape.value_lanes) * 4;
    F32x16 sum[rows][vectors];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = zero();
    for (int half = first; half < end; half++) {
        const uint8_t *at = values[half] + size_t(lane) * 4;
        for (int i = 0; i < rows_of_half; i++, at += step) {
            Bytes64 row[vectors];
            for (int v = 0; v < vectors; v++) {
                row[v] = load_bytes(at + 64 * v);
                if (ahead) prefetch_far(next_key_line<whole>(shape, places, half, size_t(lane / 16 * rows_of_half + i * vectors + v)));
            }
            for (int j = 0; j < Words::numbers; j++) {
                F32x16 x[vectors];
                for (int v = 0; v < vectors; v++) x[v] = Words::number(row[v], j);
                for (int r = 0; r < rows; r++)
                    for (int v = 0; v < vectors; v++) sum[r][v] = fma(x[v], set1(weights[r][half * half_length + i * Words::numbers + j]), sum[r][v]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        float *to = states + r * state_floats(shape) + lane;
        for (int v = 0; v < vectors; v++) store(to + 16 * v, joined(joints[r], load(to + 16 * v), sum[r][v]));
    }
}

// Values of a half whose positions first .. end - 1 alone may be read, zero elsewhere: what lies beyond may be anything, and zero times
// that need not be zero.
template <class Words> COREKIT_INLINE void copy_edge(const Shape &shape, const uint8_t *from, int first, int end, uint8_t *to) {
    const size_t lanes = size_t(shape.value_lanes);
    for (int i = 0; i < half_length / Words::numbers; i++) {
        uint32_t mask = 0;
        for (int j = 0; j < Words::numbers; j++) {
            const int position = i * Words::numbers + j;
            if (position >= first && position < end) mask |= Words::numbers == 1 ? ~0u : j == 0 ? 0xFFFFu : 0xFFFF0000u;
        }
        for (size_t lane = 0; lane < lanes; lane++) {
            uint32_t word;
            memcpy(&word, from + (i * lanes + lane) * 4, 4);
            word &= mask;
            memcpy(to + (i * lanes + lane) * 4, &word, 4);
        }
    }
}

template <class Words, int rows, bool whole, bool ahead>
static void attend_rows(const Shape &shape, const Places &places, const Seen &seen, const float *query, float *states, const Work &work) {
    const int first = seen.first_of_all / 16, end = (seen.end_of_all + 15) / 16;
    int vector = first;
    for (; vector + max_score_vectors <= end; vector += max_score_vectors)
        scores_of<Words, rows, max_score_vectors, whole, ahead>(shape, places, vector, query, work.scores);
    for (; vector + 2 <= end; vector += 2) scores_of<Words, rows, 2, whole, ahead>(shape, places, vector, query, work.scores);
    for (; vector < end; vector++) scores_of<Words, rows, 1, whole, ahead>(shape, places, vector, query, work.scores);
    Joint joints[rows];
    for (int r = 0; r < rows; r++) {
        float most, total, *tail = states + r * state_floats(shape) + shape.value_lanes;
        softmax(shape, seen, r, work.scores[r], &most, &total);
        joints[r] = joint_of(tail[0], most);
        join_weights(joints[r], tail, total);
    }
    const int first_half = seen.first_of_all / half_length, end_half = (seen.end_of_all + half_length - 1) / half_length;
    const uint8_t *values[num_halves];
    memcpy(values, places.values, sizeof values);
    for (int edge = 0; edge < 2; edge++) {
        const int half = edge ? end_half - 1 : first_half, low = seen.first_of_all - half * half_length, high = seen.end_of_all - half * half_length;
        if ((low <= 0 && high >= half_length) || (edge && half == first_half)) continue;
        uint8_t *copy = work.edges + edge * size_t(half_length / Words::numbers) * shape.value_lanes * 4;
        copy_edge<Words>(shape, places.values[half], low, high, copy);
        values[half] = copy;
    }
    int lane = 0;
    for (; lane + 16 * max_value_vectors <= shape.value_lanes; lane += 16 * max_value_vectors)
        sums_of<Words, rows, max_value_vectors, whole, ahead>(shape, places, values, first_half, end_half, lane, work.scores, joints, states);
    for (; lane < shape.value_lanes; lane += 16)
        sums_of<Words, rows, 1, whole, ahead>(shape, places, values, first_half, end_half, lane, work.scores, joints, states);
}

} // namespace COREKIT_LEVEL
} // namespace corekit
