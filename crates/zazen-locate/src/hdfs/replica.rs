//! Replicas on this host, opened as the files that they are.
//!
//! A data node keeps each block as a file, `blk_ID`, with its checksums beside it. A file of one
//! block is opened there, so that its bytes cross no socket, as with Hadoop's short-circuit reads.
//! The name node says once, for all files, that the user may read them and which version of which
//! block they are; then the kernel decides whether this process may open the data node's file.
//! Whatever is unusual (several blocks, encryption, another version, a wrong checksum) is left to
//! WebHDFS.

use super::{AT_ONCE, Hdfs, each};
use roxmltree::Document;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use zazen_core::Result;

/// The largest configuration file of Hadoop.
const SETTINGS_BYTES_MAX: u64 = 16 << 20;
/// What a `.meta` file begins with: its version, the checksum's kind, the bytes of a chunk.
const META_HEADER_BYTES: usize = 7;
const META_VERSION: u16 = 1;
/// The largest chunk that one checksum stands for.
const CHUNK_BYTES_MAX: u32 = 1 << 20;
/// So many bytes are compared at once: they stay in the processor's own cache. Each chunk is summed
/// where it lies, because a copy of each costs as much as all else here.
const AT_ONCE_BYTES: usize = 64 << 10;
const SUM_BYTES: usize = 4;
/// Folders of a data node's block pool: 32 by 32, in old layouts 256 by 256.
const SUBDIR_MASKS: [u64; 2] = [0x1f, 0xff];

#[derive(Deserialize)]
struct BlocksAnswer {
    #[serde(rename = "LocatedBlocks")]
    located: LocatedBlocks,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LocatedBlocks {
    file_length: u64,
    #[serde(default)]
    is_under_construction: bool,
    located_blocks: Vec<LocatedBlock>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LocatedBlock {
    block: Block,
    #[serde(default)]
    is_corrupt: bool,
}

/// A block as the name node knows it, which is a whole file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    block_id: i64,
    block_pool_id: String,
    generation_stamp: u64,
    num_bytes: u64,
}

#[derive(Deserialize)]
struct StatusAnswer {
    #[serde(rename = "FileStatus")]
    status: Status,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default, rename = "encBit")]
    is_encrypted: bool,
}

impl Hdfs {
    /// The blocks that `files` are: `None` for a file that can't be read as a block alone, because
    /// it has none or several, is being written, is encrypted, or is erasure-coded.
    ///
    /// Fails if the name node does.
    pub fn blocks(&self, files: &[String]) -> Result<Vec<Option<Block>>> {
        // A folder within an encryption zone has all its files there.
        let mut is_encrypted = BTreeMap::new();
        for file in files {
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            if !is_encrypted.contains_key(folder) {
                let answer = self.ask::<StatusAnswer>(folder, "GETFILESTATUS")?;
                is_encrypted.insert(folder, answer.is_none_or(|answer| answer.status.is_encrypted));
            }
        }
        each(files.len(), AT_ONCE, &|at| {
            let folder = files[at].rsplit_once('/').map_or("", |(folder, _)| folder);
            if is_encrypted[folder] { Ok(None) } else { self.only_block(&files[at]) }
        })
    }

    /// The block of a file that has one alone, and is complete.
    fn only_block(&self, file: &str) -> Result<Option<Block>> {
        let answer = self.ask::<BlocksAnswer>(file, "GET_BLOCK_LOCATIONS")?;
        let Some(BlocksAnswer { located }) = answer else { return Ok(None) };
        let [only] = &located.located_blocks[..] else { return Ok(None) };
        let block = &only.block;
        // Erasure-coded blocks have negative numbers, and no data node has all of their bytes.
        let is_plain = !located.is_under_construction && !only.is_corrupt && block.block_id >= 0;
        let is_whole = block.num_bytes == located.file_length && is_one_name(&block.block_pool_id);
        Ok((is_plain && is_whole).then(|| block.clone()))
    }
}

impl Block {
    /// Opens the block's file beneath `data_dirs`, the folders of this host's data node, and
    /// compares its checksums. `None` if this process can read no sound replica there.
    pub fn open(&self, data_dirs: &[PathBuf]) -> Option<File> {
        if self.block_id < 0 || !is_one_name(&self.block_pool_id) {
            return None;
        }
        let (replica, meta) = data_dirs.iter().find_map(|dir| open_block(dir, self))?;
        is_sound(&replica, meta).unwrap_or(false).then_some(replica)
    }
}

/// Whether the name node's text is one name of a folder, and leads nowhere else.
fn is_one_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    !name.is_empty() && name.bytes().all(plain) && name.bytes().any(|byte| byte != b'.')
}

/// The block's file and the file of its checksums in one of the data node's folders.
fn open_block(data_dir: &Path, block: &Block) -> Option<(File, File)> {
    SUBDIR_MASKS.iter().find_map(|mask| {
        let folder = folder_of(data_dir, block, *mask);
        let id = block.block_id;
        // The name has the version: after an append, the old one is gone.
        let meta = File::open(folder.join(format!("blk_{id}_{}.meta", block.generation_stamp))).ok()?;
        let replica = File::open(folder.join(format!("blk_{id}"))).ok()?;
        let found = replica.metadata().ok()?;
        (found.is_file() && found.len() == block.num_bytes).then_some((replica, meta))
    })
}

fn folder_of(data_dir: &Path, block: &Block, mask: u64) -> PathBuf {
    let id = block.block_id as u64;
    let pool = data_dir.join("current").join(&block.block_pool_id).join("current/finalized");
    pool.join(format!("subdir{}", (id >> 16) & mask)).join(format!("subdir{}", (id >> 8) & mask))
}

/// Whether the bytes of a replica match its checksums; those of an unknown kind do not.
fn is_sound(replica: &File, mut meta: File) -> io::Result<bool> {
    let mut header = [0; META_HEADER_BYTES];
    meta.read_exact(&mut header)?;
    let version = u16::from_be_bytes([header[0], header[1]]);
    let chunk_bytes = u32::from_be_bytes([header[3], header[4], header[5], header[6]]);
    if version != META_VERSION || chunk_bytes == 0 || chunk_bytes > CHUNK_BYTES_MAX {
        return Ok(false);
    }
    let sum: fn(&[u8]) -> u32 = match header[2] {
        1 => crc_fast::crc32_iso_hdlc,
        2 => crc_fast::crc32_iscsi,
        _ => return Ok(false),
    };
    let chunk_bytes = chunk_bytes as usize;
    let mut bytes = vec![0; chunk_bytes * (AT_ONCE_BYTES / chunk_bytes).max(1)];
    let mut sums = vec![0; SUM_BYTES * (bytes.len() / chunk_bytes)];
    let mut source = replica;
    loop {
        let count = fill(source, &mut bytes)?;
        if count == 0 {
            break;
        }
        let expected = &mut sums[..SUM_BYTES * count.div_ceil(chunk_bytes)];
        meta.read_exact(expected)?;
        let chunks = bytes[..count].chunks(chunk_bytes);
        if chunks
            .zip(expected.chunks(SUM_BYTES))
            .any(|(chunk, expected)| sum(chunk).to_be_bytes() != *expected)
        {
            return Ok(false);
        }
    }
    source.rewind()?;
    Ok(true)
}

/// Reads until `bytes` are full or the file ends; how many came.
fn fill(mut file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match file.read(&mut bytes[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// The folders of this host's data node, as Hadoop's configuration names them: `hdfs-site.xml` in
/// `$HADOOP_CONF_DIR`, `$HADOOP_HOME/etc/hadoop` or `/etc/hadoop/conf`. None without one, or if it
/// turns short-circuit reads off.
pub fn data_dirs_of_environment() -> Vec<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let conf = folder("HADOOP_CONF_DIR")
        .or_else(|| folder("HADOOP_HOME").map(|home| home.join("etc/hadoop")))
        .unwrap_or_else(|| PathBuf::from("/etc/hadoop/conf"));
    let Ok(file) = File::open(conf.join("hdfs-site.xml")) else { return Vec::new() };
    let mut text = String::new();
    match file.take(SETTINGS_BYTES_MAX).read_to_string(&mut text) {
        Ok(_) => data_dirs(&text),
        Err(_) => Vec::new(),
    }
}

/// The data node's folders on this host that a `hdfs-site.xml` names.
fn data_dirs(settings: &str) -> Vec<PathBuf> {
    let Ok(document) = Document::parse(settings) else { return Vec::new() };
    let properties = document.descendants().filter(|node| node.has_tag_name("property"));
    let (mut dirs, mut allowed) = ("", true);
    for property in properties {
        let text = |tag: &str| property.children().find(|node| node.has_tag_name(tag))?.text();
        match (text("name").map(str::trim), text("value").map(str::trim)) {
            (Some("dfs.datanode.data.dir" | "dfs.data.dir"), Some(value)) => dirs = value,
            (Some("dfs.client.read.shortcircuit"), Some(value)) => {
                allowed = !value.eq_ignore_ascii_case("false");
            }
            _ => {}
        }
    }
    if !allowed {
        return Vec::new();
    }
    dirs.split(',').filter_map(data_dir).collect()
}

/// `/data/1`, `file:///data/1` or `[SSD]file:///data/1`; others, such as `${…}`, are passed over.
fn data_dir(text: &str) -> Option<PathBuf> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(text, |(_, rest)| rest);
    let path = match text.strip_prefix("file:") {
        Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
        None => text,
    };
    (path.starts_with('/') && !path.contains('$')).then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hadoops_settings_name_the_folders() {
        let settings = |more: &str| {
            format!(
                "<?xml version=\"1.0\"?>\n<configuration><property><name>dfs.datanode.data.dir</name>\n\
                 <value> [DISK]file:///d/1 ,/d/2,file:/d/3, ${{home}}/d, [SSD]/d/4,hdfs://x/y </value>\
                 </property>{more}</configuration>"
            )
        };
        let four: Vec<PathBuf> = (1..=4).map(|disk| PathBuf::from(format!("/d/{disk}"))).collect();
        assert_eq!(data_dirs(&settings("")), four);
        let switch = |value: &str| {
            let name = "dfs.client.read.shortcircuit";
            settings(&format!("<property><name>{name}</name><value>{value}</value></property>"))
        };
        assert_eq!(data_dirs(&switch("true")), four);
        for off in [switch("false"), switch(" FALSE "), "<configuration>".into(), "<a/>".into(), "".into()] {
            assert_eq!(data_dirs(&off), Vec::<PathBuf>::new(), "{off}");
        }
    }

    #[test]
    fn a_block_has_its_folder() {
        let block = Block {
            block_id: 1_073_741_825 + (3 << 16) + (200 << 8),
            block_pool_id: "BP-1-10.0.0.1-2".into(),
            generation_stamp: 1001,
            num_bytes: 5,
        };
        let folder = |mask| folder_of(Path::new("/d"), &block, mask).display().to_string();
        assert_eq!(folder(0x1f), "/d/current/BP-1-10.0.0.1-2/current/finalized/subdir3/subdir8");
        assert_eq!(folder(0xff), "/d/current/BP-1-10.0.0.1-2/current/finalized/subdir3/subdir200");
        for (name, fits) in
            [("BP-1-10.0.0.1-2", true), ("..", false), (".", false), ("a/b", false), ("", false)]
        {
            assert_eq!(is_one_name(name), fits, "{name}");
        }
    }

    /// A replica and its `.meta` file with chunks of 512 bytes.
    fn files(bytes: &[u8], kind: u8, sum: fn(&[u8]) -> u32) -> (File, File) {
        let mut meta = vec![0, 1, kind, 0, 0, 2, 0];
        bytes.chunks(512).for_each(|chunk| meta.extend(sum(chunk).to_be_bytes()));
        let written = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, bytes).unwrap();
            file.rewind().unwrap();
            file
        };
        (written(bytes), written(&meta))
    }

    /// CRC-32 bit by bit, with the reflected polynomial.
    fn by_bits(bytes: &[u8], polynomial: u32) -> u32 {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (polynomial * (crc & 1)))
        })
    }

    #[test]
    fn bytes_that_do_not_match_their_checksum_are_noticed() {
        let castagnoli: fn(&[u8]) -> u32 = |bytes| by_bits(bytes, 0x82F6_3B78);
        let zip: fn(&[u8]) -> u32 = |bytes| by_bits(bytes, 0xEDB8_8320);
        assert_eq!(castagnoli(b"123456789"), 0xE306_9283);
        let bytes: Vec<u8> = (0..1300u32).map(|at| (at * 7 % 251) as u8).collect();
        for (kind, sum) in [(2, castagnoli), (1, zip)] {
            let (replica, meta) = files(&bytes, kind, sum);
            assert!(is_sound(&replica, meta).unwrap(), "kind {kind}");
            let (_, meta) = files(&bytes, kind, sum);
            let mut wrong = bytes.clone();
            wrong[1299] ^= 1;
            assert!(!is_sound(&files(&wrong, kind, sum).0, meta).unwrap(), "kind {kind}");
        }
        // More than are compared at once, and a last chunk that is not whole.
        let long: Vec<u8> = (0..AT_ONCE_BYTES as u32 * 2 + 700).map(|at| (at * 7 % 251) as u8).collect();
        for at in [None, Some(0), Some(AT_ONCE_BYTES + 600), Some(long.len() - 1)] {
            let (_, meta) = files(&long, 2, castagnoli);
            let mut read = long.clone();
            at.into_iter().for_each(|at| read[at] ^= 0x80);
            assert_eq!(is_sound(&files(&read, 2, castagnoli).0, meta).unwrap(), at.is_none(), "{at:?}");
        }
        let (replica, meta) = files(&bytes, 0, castagnoli);
        assert!(!is_sound(&replica, meta).unwrap(), "no checksums");
        let (replica, meta) = files(&bytes, 2, castagnoli);
        meta.set_len(10).unwrap();
        assert!(is_sound(&replica, meta).is_err(), "cut checksums");
        assert!(is_sound(&replica, tempfile::tempfile().unwrap()).is_err(), "no header");
    }
}
