"""Servers of other systems that run beside a site's own: each keeps its state in a folder of the
bench's, within namespaces that the caller makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

NFS_PORT, GLUSTER_PORT = 2049, 24007
NFS_PACKAGES = ("nfs-ganesha", "nfs-ganesha-vfs", "rpcbind")
GLUSTER_PACKAGES = ("glusterfs-server", "glusterfs-client")
#: Of a volume, as Gluster's and Red Hat's administration guides advise; what a client keeps in its
#: own memory would outlive the dropping of the kernel's caches, and is no file system's rate.
GLUSTER_OPTIONS = {
    "client.event-threads": "4",
    "server.event-threads": "4",
    "performance.client-io-threads": "on",
    "performance.io-cache": "off",
    "performance.quick-read": "off",
}
_GANESHA = """\
NFS_CORE_PARAM {{
    Protocols = 3;
    NFS_Port = {port};
    MNT_Port = 20048;
    mount_path_pseudo = true;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    allow_set_io_flusher_fail = true;
}}
EXPORT {{
    Export_Id = 1;
    Path = "{export}";
    Pseudo = "/export";
    Access_Type = {access};
    Squash = No_Root_Squash;
    SecType = sys;
    Transports = TCP;
    Protocols = 3;
    MaxRead = 1048576;
    PrefRead = 1048576;
    MaxWrite = 1048576;
    PrefWrite = 1048576;
    FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = EVENT; }}
"""
_GLUSTERD = """\
cp -r /var/lib/glusterd/. "$0/state/" && rm -f "$0/state/glusterd.info" \
&& mount --bind "$0/state" /var/lib/glusterd && mount --bind "$0/logs" /var/log/glusterfs \
&& mkdir -p /run/gluster && exec glusterd --no-daemon --log-level=WARNING
"""


def ganesha(folder: Path, export: Path, log: Path, *, writable: bool) -> Sequence[object]:
    """The command of an NFS v3 server for the folder `export`, named /export, with requests of up
    to 1 MiB; it needs a /run of its own. `folder` takes its files."""
    configuration = folder / "ganesha.conf"
    access = "RW" if writable else "RO"
    configuration.write_text(_GANESHA.format(port=NFS_PORT, export=export, access=access))
    server = ["ganesha.nfsd", "-F", "-f", configuration, "-L", log, "-p", folder / "pid"]
    return ["sh", "-c", 'rpcbind && exec "$@"', "sh", *server]


def glusterd(folder: Path) -> Sequence[object]:
    """The command of GlusterFS's management server; it needs a /run and mounts of its own. It keeps
    fixed places for its state: they become folders in `folder`."""
    for name in ("state", "logs"):
        (folder / name).mkdir(parents=True)
    return ["bash", "-c", _GLUSTERD, folder]
