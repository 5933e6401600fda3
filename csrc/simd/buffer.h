// Memory that only grows, aligned for vectors. New memory is zero: padding is read, and must be no NaN.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace corekit {

template <class T> class Buffer {
public:
    Buffer() = default;
    Buffer(Buffer &&other) noexcept : memory_(other.memory_), count_(other.count_) {
        other.memory_ = nullptr;
        other.count_ = 0;
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { std::free(memory_); }

    // What it held is lost where it grows. Throws std::bad_alloc.
    void reserve(size_t count) {
        if (count <= count_) return;
        const size_t bytes = (count * sizeof(T) + alignment - 1) / alignment * alignment;
        void *fresh = std::aligned_alloc(alignment, bytes);
        if (!fresh) throw std::bad_alloc();
        std::memset(fresh, 0, bytes);
        std::free(memory_);
        memory_ = static_cast<T *>(fresh);
        count_ = count;
    }
    T *at(size_t offset = 0) { return memory_ + offset; }

private:
    static constexpr size_t alignment = 64;
    T *memory_ = nullptr;
    size_t count_ = 0;
};

} // namespace corekit
