//! What directories and files wish ([`Wish`]). A new file gets the wishes of the nearest directory
//! above that has them, in the change that makes the file.

use crate::handles::lock;
use crate::looks::Looks;
use crate::node::NamespaceNode;
use crate::route::root;
use crate::wish::Wish;
use std::time::{Duration, Instant};
use zazen_namespace::operation::{Answer, Inode, Operation};
use zazen_namespace::{Errno, InodeId};

/// How long a directory's wish is remembered.
const REMEMBERED: Duration = Duration::from_secs(2);
/// Wishes that are remembered.
const REMEMBERED_MAX: usize = 1 << 16;
/// Directories above a file, at most.
const DEPTH_MAX: usize = 4096;

/// What a new file shall say.
pub(crate) struct OfNew {
    /// Of how many nodes shall have it; 0 for nothing.
    pub(crate) copies: u8,
    /// Of the archive.
    pub(crate) archived: Option<bool>,
    /// How many MiB its chunks have.
    pub(crate) chunk_mib: Option<u32>,
}

impl NamespaceNode {
    /// What the directory wishes for a new file in it.
    fn wish_in(&self, wish: Wish, directory: InodeId, looks: &mut Looks) -> Result<u32, Errno> {
        let mut above = Vec::new();
        let mut at = directory;
        let wanted = loop {
            let known = lock(&self.waiting.wishes).get(&(wish, at)).copied();
            if let Some((wanted, _)) = known.filter(|(_, asked)| asked.elapsed() < REMEMBERED) {
                break wanted;
            }
            above.push(at);
            match self.look(looks, wish.get(at).ok_or(Errno::EIO)?) {
                Ok(Answer::Bytes(value)) => break wish.parse(&value.bytes).unwrap_or(wish.unsaid()),
                Ok(_) => return Err(Errno::EIO),
                Err(Errno::ENODATA) if at == InodeId::ROOT || above.len() > DEPTH_MAX => break wish.unsaid(),
                Err(Errno::ENODATA) => {}
                Err(errno) => return Err(errno),
            }
            match self.look(looks, Operation::Parent(Inode { id: at }))? {
                Answer::Entry(parent) => at = parent.id,
                _ => return Err(Errno::EIO),
            }
        };
        let mut known = lock(&self.waiting.wishes);
        if known.len() + above.len() > REMEMBERED_MAX {
            known.clear();
        }
        known.extend(above.into_iter().map(|id| ((wish, id), (wanted, Instant::now()))));
        Ok(wanted)
    }

    /// What a new file of the directory shall say.
    pub(crate) fn wishes_of_new(&self, directory: InodeId, looks: &mut Looks) -> Result<OfNew, Errno> {
        let mut wanted = |wish: Wish| match self.wish_in(wish, directory, looks) {
            // The directory is gone, or is none: making a file there says so.
            Err(Errno::ESTALE | Errno::ENOENT | Errno::ENOTDIR) => Ok(wish.unsaid()),
            wanted => wanted,
        };
        let copies = Some(wanted(Wish::Copies)?).filter(|copies| *copies != Wish::Copies.unsaid());
        let copies = copies.and_then(|copies| u8::try_from(copies).ok()).unwrap_or(0);
        // Without an archive, nobody needs to look for the wish.
        let has_archive = self.told.archive.is_some();
        let archive = if has_archive { wanted(Wish::Archive)? } else { Wish::Archive.unsaid() };
        let archived = (archive != Wish::Archive.unsaid()).then_some(false);
        let chunk_mib = Some(wanted(Wish::Chunks)?).filter(|mib| *mib != Wish::Chunks.unsaid());
        Ok(OfNew { copies, archived, chunk_mib })
    }

    /// What is wished for files; one result for each, in order. `ETIMEDOUT` if their partitions do
    /// not answer.
    pub(crate) fn wishes_of(&self, wish: Wish, ids: &[InodeId]) -> Vec<Result<u32, Errno>> {
        let asks = ids.iter().filter_map(|id| Some((root(), wish.get(*id)?))).collect();
        let answers = self.route(asks).into_iter().map(|answer| match answer {
            Answer::Bytes(value) => Ok(wish.parse(&value.bytes).unwrap_or(wish.unsaid())),
            Answer::Refused(refused) if refused.errno == Errno::ETIMEDOUT => Err(refused.errno),
            _ => Ok(wish.unsaid()),
        });
        answers.collect()
    }
}
