# The commit that a build is made from, which stands beside its figures. Included, it adds the library marble_commit with
# the header marble_commit.hpp; as a script (cmake -DSOURCE= -DHEADER= -P) it writes that header: at every build, for the
# commit changes without a new configuration, and first when that is made, for tools that read sources without a build.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(header ${PROJECT_BINARY_DIR}/commit/marble_commit.hpp)
  set(write ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DHEADER=${header} -P ${CMAKE_CURRENT_LIST_FILE})
  execute_process(COMMAND ${write})
  add_custom_target(marble_commit_header COMMAND ${write} BYPRODUCTS ${header})
  add_library(marble_commit INTERFACE)
  target_include_directories(marble_commit INTERFACE ${PROJECT_BINARY_DIR}/commit)
  add_dependencies(marble_commit marble_commit_header)
  return()
endif()

execute_process(COMMAND git -C ${SOURCE} rev-parse --short HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET)
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define MARBLE_COMMIT \"${commit}\"\n")  # a file that is so already stays as old
