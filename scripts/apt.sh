# Sourced by the scripts that may have to install a Debian package.

# Installs the packages named, if this user may; fails without a word otherwise.
apt_install() {
    local as_root=()
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true >/dev/null 2>&1 || return 1
        as_root=(sudo -n)
    fi
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends)
    # The package lists of a fresh machine are empty, so a first failure is worth an update.
    "${as_root[@]}" "${install[@]}" "$@" >/dev/null 2>&1 && return 0
    "${as_root[@]}" apt-get update -qq >/dev/null 2>&1 || return 1
    "${as_root[@]}" "${install[@]}" "$@" >/dev/null 2>&1
}
