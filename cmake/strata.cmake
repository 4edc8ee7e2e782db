# SPDX-License-Identifier: Apache-2.0
# Rules shared by every folder: language level, warnings, numerics flags, and three target makers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")

find_package(Threads REQUIRED)

add_library(strata_flags INTERFACE)
target_include_directories(strata_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# x86-64-v2 everywhere; only ops/cpu/*_<path>.cc and *_impl.cc raise it. No contraction: kernels write fma by hand.
target_compile_options(strata_flags INTERFACE -Wall -Wextra -Werror -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(strata_flags INTERFACE -march=x86-64-v2)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++'s own std::stable_sort calls a function that it calls deprecated; g++ knows its headers and warns of ours.
  target_compile_options(strata_flags INTERFACE -Wthread-safety -Wno-deprecated-declarations)
endif()
target_link_libraries(strata_flags INTERFACE Threads::Threads)

# strata_library(base LINK fmt::fmt): every .cc of the folder (and of its subfolders, EXCEPT one) in one target.
function(strata_library name)
  cmake_parse_arguments(ARG "" "EXCEPT" "LINK;PRIVATE_LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(ARG_EXCEPT)
    list(FILTER sources EXCLUDE REGEX "/${ARG_EXCEPT}/[^/]*$")
  endif()
  add_library(strata_${name} STATIC ${sources})
  target_link_libraries(strata_${name} PUBLIC strata_flags ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
endfunction()

# strata_test(text LINK strata_text): every *_test.cc of the folder in one binary and one ctest entry.
function(strata_test name)
  cmake_parse_arguments(ARG "SLOW" "" "LINK;ENVIRONMENT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_executable(${name}_test ${sources})
  target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name}_test PRIVATE STRATA_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name}_test PRIVATE ${ARG_LINK} GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name}_test --gtest_brief=1)
  if(ARG_ENVIRONMENT)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${ARG_ENVIRONMENT}")
  endif()
  if(ARG_SLOW)
    set_tests_properties(${name} PROPERTIES LABELS slow)
  endif()
endfunction()

# strata_fuzz(safetensors LINK strata_checkpoint): tests/fuzz/safetensors_fuzz.cc.
function(strata_fuzz name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_executable(${name}_fuzz ${name}_fuzz.cc)
  target_link_libraries(${name}_fuzz PRIVATE ${ARG_LINK} -fsanitize=fuzzer)
endfunction()
