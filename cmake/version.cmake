# SPDX-License-Identifier: Apache-2.0
# Run by each build: writes OUT from IN, touching it only where it changes, so that nothing is linked again for the same commit.
# Of a tree without its own git repository (a tarball) the commit stays empty.
set(STRATA_COMMIT "")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE top
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH "${SOURCE}" source)
  if(top STREQUAL source)
    execute_process(COMMAND ${GIT_EXECUTABLE} --no-optional-locks describe --tags --always --dirty=-modified --abbrev=12
                    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE STRATA_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
configure_file(${IN} ${OUT} @ONLY)
