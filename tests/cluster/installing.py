"""Packages installed and purged by dpkg or rpm on a copy of this system that is thrown away."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

#: The exit status where no copy can be made.
NO_COPY = 77

# The system, with what dpkg changes in memory. $1: a folder; the rest: packages.
COPY = """
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root debs
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" root || exit 77
mount --bind /proc root/proc
mount --rbind /dev root/dev
mkdir -p root/mnt/debs
at="$1"; shift
cp "$@" root/mnt/debs/
"""

# As docs/operating.md says, but that nothing starts here: this copy has no systemd that runs.
INSIDE = """
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
command -v zazend && { echo "zazend is installed here already"; exit 77; }
mkdir -p /mnt/ssd /mnt/lustre
dpkg --install /mnt/debs/*.deb >/mnt/said 2>&1 || { cat /mnt/said; exit 1; }
dpkg --audit
dpkg --verify zazen libzazen0 libzazen-dev zazen-slurm
zazen key new /etc/zazen/key
sed -e 's|^cache = .*|cache = "/mnt/ssd/zazen"|' -e 's|^backing = .*|backing = ["/mnt/lustre"]|' \\
  /usr/share/doc/zazen/examples/zazend.toml > /etc/zazen/zazend.toml
zazend --config /etc/zazen/zazend.toml --check
if command -v systemd-analyze >/dev/null; then
  systemd-analyze verify /lib/systemd/system/zazend.service
fi
zazend --config /etc/zazen/zazend.toml --metrics 127.0.0.1:0 --ready-file /mnt/ready & daemon=$!
for try in $(seq 300); do test -s /mnt/ready && break; sleep 0.1; done
zazen status
kill $daemon; wait $daemon
# The same version again, as an upgrade does it.
dpkg --install /mnt/debs/*.deb >/mnt/said 2>&1 || { cat /mnt/said; exit 1; }
test -f /etc/zazen/key && test -f /etc/zazen/zazend.toml
dpkg --purge zazen-slurm libzazen-dev libzazen0 zazen >/mnt/said 2>&1 || { cat /mnt/said; exit 1; }
# A purge keeps what it did not make.
test -f /etc/zazen/key && test -f /etc/zazen/zazend.toml
rm -r /etc/zazen /mnt/ssd
! dpkg --status zazen libzazen0 2>/dev/null
# What a running systemd removes with the unit.
rm -r /run/zazen /mnt/debs
"""

# The same by rpm. No package of this system is in rpm's database, so what the packages need is not
# looked for, and the loader of Debian is told of the folder that others have by themselves.
INSIDE_BY_RPM = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
command -v zazend && { echo "zazend is installed here already"; exit 77; }
mkdir -p /mnt/ssd /mnt/lustre
echo /usr/lib64 > /etc/ld.so.conf.d/mnt-lib64.conf
rpm() { command rpm --dbpath /mnt/rpm "$@" 2>&1; }
rpm --initdb
rpm --install --nodeps /mnt/debs/*.rpm
rpm --query --all
# All files are as the packages say. Nothing that they need is a package here.
rpm --verify --nodeps zazen zazen-libs zazen-devel zazen-slurm
ldconfig -p | grep libzazen.so.0
zazen key new /etc/zazen/key
sed -e 's|^cache = .*|cache = "/mnt/ssd/zazen"|' -e 's|^backing = .*|backing = ["/mnt/lustre"]|' \\
  /usr/share/doc/zazen/examples/zazend.toml > /etc/zazen/zazend.toml
zazend --config /etc/zazen/zazend.toml --check
zazend --config /etc/zazen/zazend.toml --metrics 127.0.0.1:0 --ready-file /mnt/ready & daemon=$!
for try in $(seq 300); do test -s /mnt/ready && break; sleep 0.1; done
zazen status
kill $daemon; wait $daemon
# The same version again, as an upgrade does it.
rpm --upgrade --force --nodeps /mnt/debs/*.rpm
zazen --version
test -f /etc/zazen/key && test -f /etc/zazen/zazend.toml
rpm --erase --nodeps zazen-slurm zazen-devel zazen-libs zazen
test -f /etc/zazen/key && test -f /etc/zazen/zazend.toml
rm -r /etc/zazen /mnt/ssd
! rpm --query zazen zazen-libs
rm -rf /run/zazen /mnt/debs /mnt/rpm
"""


def install_and_purge(
    at: Path, packages: Iterable[Path], inside: str = INSIDE
) -> subprocess.CompletedProcess[str]:
    """Does all of it in the empty folder `at`, as root, in a network and with mounts of its own.

    The output ends with the line `left:` and the paths that are left of Zazen after a purge."""
    inside = inside.replace("'", "'\\''")
    left = 'find "$at/upper" -iname "*zazen*" -not -type c'
    script = f"set -eu\n{COPY}\nchroot root /bin/sh -eu -c '{inside}'\necho left:\n{left}\n"
    words = ["unshare", "--mount", "--net", "--fork", "sh", "-c", script, "sh", at, *packages]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, cwd="/")
