# Warnings and sanitizers that every target of this project shares.
add_library(marble_warnings INTERFACE)
target_compile_options(marble_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wsign-conversion;-Wshadow;-Wno-missing-field-initializers>)
if(MARBLE_WARNINGS_AS_ERRORS)
  target_compile_options(marble_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# GCC 12 warns of overlapping copies inside std::string where there are none (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(marble_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()

if(MARBLE_SANITIZE)
  add_compile_options(-fsanitize=${MARBLE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MARBLE_SANITIZE})
endif()
