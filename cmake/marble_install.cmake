# What `cmake --install` puts in place, so that a user's find_package(marble) gives marble::marble.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# A static library's private dependencies are its user's to link.
set(MARBLE_WITH_MPI FALSE)
if(TARGET MPI::MPI_CXX)
  set(MARBLE_WITH_MPI TRUE)
endif()

install(TARGETS marble EXPORT marble_targets FILE_SET HEADERS)
install(EXPORT marble_targets NAMESPACE marble:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/marble)
configure_package_config_file(cmake/marble-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/marble-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/marble)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/marble-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES data/hardware/h100.json data/hardware/h200.json DESTINATION ${CMAKE_INSTALL_DATADIR}/marble/hardware)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/marble-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/marble-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/marble)
