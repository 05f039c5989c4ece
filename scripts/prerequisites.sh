#!/usr/bin/env bash
# Names each missing prerequisite together with the command that installs it; silent if nothing is missing.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
missing=0

lack() { # what, how to get it
  printf 'missing: %s\n    install it with: %s\n' "$1" "$2" >&2
  missing=1
}

if command -v apt-get >/dev/null 2>&1; then system="sudo apt-get install -y"
elif command -v dnf >/dev/null 2>&1; then system="sudo dnf install -y"
elif command -v zypper >/dev/null 2>&1; then system="sudo zypper install -y"
else system="your package manager: install"
fi
wanted=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

if ! command -v cargo >/dev/null 2>&1; then
  lack "Rust $wanted (cargo)" "$system rustup (or the installer of rust-lang.org), then: rustup toolchain install $wanted"
elif ! found=$(cargo --version 2>&1); then
  lack "Rust toolchain $wanted (cargo says: $(printf '%s' "$found" | head -n 1))" "rustup toolchain install $wanted"
else
  version=$(printf '%s' "$found" | sed -n 's/^cargo \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  read -r major minor <<<"$version"
  need=$(printf '%s' "$wanted" | cut -d. -f2)
  if [ "${major:-0}" -lt 1 ] || [ "${minor:-0}" -lt "$need" ]; then
    lack "Rust $wanted or newer (found: $found)" "rustup toolchain install $wanted"
  fi
fi
if ! command -v cc >/dev/null 2>&1; then
  lack "a C compiler (cc)" "$system gcc"
fi
if ! command -v "$PYTHON" >/dev/null 2>&1; then
  lack "Python 3.11 or newer ($PYTHON)" "$system python3 python3-venv"
else
  if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    lack "Python 3.11 or newer (found: $("$PYTHON" --version 2>&1))" "$system python3.11 python3.11-venv, then: make PYTHON=python3.11 …"
  fi
  if ! "$PYTHON" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    lack "Python's venv module" "$system python3-venv"
  fi
fi
exit $missing
