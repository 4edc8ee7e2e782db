# SPDX-License-Identifier: Apache-2.0
# cmake --install, behind `make build`: the stripped program, its man pages and completions (made by the program from its table of options),
# documents and an example configuration. cpack makes the .deb (make package).
include(GNUInstallDirs)
install(PROGRAMS $<TARGET_FILE:strata> DESTINATION ${CMAKE_INSTALL_BINDIR})
find_program(STRATA_STRIP strip REQUIRED)
install(CODE "execute_process(COMMAND ${STRATA_STRIP} \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/strata\"
                              COMMAND_ERROR_IS_FATAL ANY)")

# The plugin for ranks: a package of its own, since the program runs without MPI.
if(TARGET strata_mpi)
  install(TARGETS strata_mpi LIBRARY DESTINATION lib/strata COMPONENT mpi)
endif()

set(made ${CMAKE_BINARY_DIR}/install)
add_custom_command(OUTPUT ${made}/done
                   COMMAND ${CMAKE_COMMAND} -E rm -rf ${made}
                   COMMAND ${CMAKE_COMMAND} -E make_directory ${made}
                   COMMAND strata manual --out ${made}
                   COMMAND ${CMAKE_COMMAND} -E touch ${made}/done
                   DEPENDS strata VERBATIM)
add_custom_target(install_files ALL DEPENDS ${made}/done)
if(TARGET strata_mpi)
  add_dependencies(install_files strata_mpi)
endif()
install(DIRECTORY ${made}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${made}/strata.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME strata)
install(FILES ${made}/strata.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _strata)
install(FILES ${made}/strata.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES ${made}/strata.toml DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES README.md LICENSE CHANGELOG.md SECURITY.md THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY LICENSES DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES examples/systemd/strata.service DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
# Nothing enables the unit: the administrator does, when its keys and configuration are in place.
install(CODE "file(READ ${PROJECT_SOURCE_DIR}/examples/systemd/strata.service unit)
  string(REPLACE /usr/local/bin/strata \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/strata unit \"\${unit}\")
  file(WRITE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/strata.service\" \"\${unit}\")")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME strata)
set(CPACK_PACKAGE_CONTACT "The Strata authors <maintainers@strata.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Fine-tune and serve language models on a CPU")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME strata)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SUGGESTS "libpq5, strata-mpi")
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/postinst ${PROJECT_SOURCE_DIR}/cmake/debian/prerm
                                                   ${PROJECT_SOURCE_DIR}/cmake/debian/postrm)
set(CPACK_DEBIAN_MPI_PACKAGE_NAME strata-mpi)
set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "strata (= ${PROJECT_VERSION}), openmpi-bin")
set(CPACK_COMPONENT_MPI_DESCRIPTION "Training by several processes, on one machine or more: strata --ranks")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
