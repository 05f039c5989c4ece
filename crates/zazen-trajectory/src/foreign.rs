//! Files that people take for trajectories, and whose frames are not found: what they are, and what
//! to do.

/// Compressed files: the first bytes, the format, the command that unpacks them.
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b", "gzip", "gunzip -k"),
    (b"BZh", "bzip2", "bunzip2 -k"),
    (b"\xfd7zXZ\0", "xz", "unxz -k"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd -k"),
];
/// What the lines at the beginning of a PDB file begin with.
const PDB: [&[u8]; 9] =
    [b"HEADER", b"TITLE ", b"CRYST1", b"REMARK", b"COMPND", b"MODEL ", b"ATOM  ", b"HETATM", b"EXPDTA"];
/// TNG begins with a block of this name.
const TNG: &[u8] = b"GENERAL INFO";

/// What a file that [`crate::sniff`] does not know is, and what to do: to be read behind "FILE ".
pub fn foreign(head: &[u8]) -> String {
    if let Some((_, format, command)) = COMPRESSED.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return format!(
            "is compressed ({format}), so that no frame is a range of its bytes; unpack it: {command} FILE"
        );
    }
    if head[..head.len().min(128)].windows(TNG.len()).any(|window| window == TNG) {
        return "is a TNG file, which is not read; convert it: gmx trjconv -f FILE -o NEW.xtc".to_owned();
    }
    if PDB.iter().any(|line| head.starts_with(line)) {
        return "is a PDB file, which is read only as one file a frame, in a directory of numbered files; \
                convert one with several models to XTC or DCD"
            .to_owned();
    }
    "is no trajectory: its first bytes are those of none of XTC, TRR, DCD, AMBER NetCDF, H5MD, LAMMPS dump \
     (text), GRO (named .gro) and XYZ (named .xyz or .extxyz)"
        .to_owned()
}
