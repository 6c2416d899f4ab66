// AT_DISPATCH_*: a switch over the dtype, with scalar_t bound in each case.
#pragma once
#include <hiera_mini/tensor.h>

#define AT_PRIVATE_CASE_TYPE_USING_HINT(S, NAME, ...)                              \
  case S: {                                                                        \
    using NAME [[maybe_unused]] = ::c10::impl::ScalarTypeToCPPTypeT<S>;            \
    return __VA_ARGS__();                                                          \
  }
#define AT_DISPATCH_CASE(S, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(S, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                                    \
  [&] {                                                                                                        \
    const ::at::ScalarType hm_type = (TYPE);                                                                   \
    switch (hm_type) {                                                                                         \
      __VA_ARGS__                                                                                              \
      default:                                                                                                 \
        HM_FAIL('"', NAME, "\" not implemented for '", hm_type, "'");                                           \
    }                                                                                                          \
  }()

#define AT_DISPATCH_CASE_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(::at::ScalarType::Double, __VA_ARGS__) AT_DISPATCH_CASE(::at::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(::at::ScalarType::Half, __VA_ARGS__) AT_DISPATCH_CASE(::at::ScalarType::BFloat16, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)                                                                      \
  AT_DISPATCH_CASE(::at::ScalarType::Byte, __VA_ARGS__) AT_DISPATCH_CASE(::at::ScalarType::Char, __VA_ARGS__)     \
  AT_DISPATCH_CASE(::at::ScalarType::Int, __VA_ARGS__) AT_DISPATCH_CASE(::at::ScalarType::Long, __VA_ARGS__)      \
  AT_DISPATCH_CASE(::at::ScalarType::Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(T, N, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND(::at::ScalarType::Half, T, N, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND(S1, T, N, ...) \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(S1, S2, T, N, ...)                                                     \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__)      \
                               AT_DISPATCH_CASE(S2, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND3(S1, S2, S3, T, N, ...)                                                 \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__)      \
                               AT_DISPATCH_CASE(S2, __VA_ARGS__) AT_DISPATCH_CASE(S3, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(T, N, ...) \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES_AND(S1, T, N, ...) \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(S1, T, N, ...) \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(S1, S2, T, N, ...)                                                          \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__)           \
                               AT_DISPATCH_CASE(S2, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(S1, S2, S3, T, N, ...)                                                      \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__)           \
                               AT_DISPATCH_CASE(S2, __VA_ARGS__) AT_DISPATCH_CASE(S3, __VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(T, N, ...)                                                                     \
  AT_DISPATCH_SWITCH(T, N, AT_PRIVATE_CASE_TYPE_USING_HINT(::at::ScalarType::Int, index_t, __VA_ARGS__)        \
                               AT_PRIVATE_CASE_TYPE_USING_HINT(::at::ScalarType::Long, index_t, __VA_ARGS__))
