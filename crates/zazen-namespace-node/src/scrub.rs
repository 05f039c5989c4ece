//! A look at the objects of a node: are their bytes what was written, and does an inode name them?

use crate::driver::wall_ns;
use crate::node::NamespaceNode;
use crate::objects::{self, ObjectName};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::service::{Damage, Scrub, ScrubAt, Scrubbed, namespace_fn};
use zazen_namespace::{Attributes, NodeNo, Place};
use zazen_wire::Message;

/// How long one call works.
const PART: Duration = Duration::from_secs(2);
/// How long another node may take for a part.
const THERE: Duration = Duration::from_secs(60);
/// Objects whose inodes are asked for together.
const AT_ONCE: usize = 512;
/// Younger objects are never leftovers: longer than the end of a copy, or the creation of a file,
/// may take to become known.
const YOUNG_NS: i64 = 60_000_000_000;

impl NamespaceNode {
    /// Checks some objects, here or on another node.
    pub(crate) fn scrub(&self, asked: &Scrub) -> Result<Scrubbed> {
        let (me, _) = self.identity()?;
        if let Some(node) = asked.node.filter(|node| *node != me) {
            let address = self.address(node).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("the namespace has no node {node}"))
            })?;
            let ask = Scrub { node: None, from: asked.from }.encode();
            let reply = self.links.call(&address, namespace_fn::SCRUB, &ask, &[], THERE)?;
            return Scrubbed::decode(&reply.payload);
        }
        let until = Instant::now() + PART;
        let goes_on = || Instant::now() < until && !self.stopping.load(Ordering::Relaxed);
        let mut done = Scrubbed { folders: objects::FOLDERS, ..Scrubbed::default() };
        let mut at = asked.from;
        while let Some(listed) = self.objects.folder(at.folder) {
            let mut names = listed.map_err(|errno| {
                let text = format!(
                    "folder {:03x} of the objects cannot be listed: {errno}; nothing from it on was \
                     checked; look at the disk of this node",
                    at.folder
                );
                Error::new(ErrorKind::Io, text)
            })?;
            names.retain(|name| (name.id, name.generation) >= (at.id, at.generation));
            names.sort_unstable();
            for part in names.chunks(AT_ONCE) {
                let ids: Vec<_> = part.iter().map(|name| name.id).collect();
                for (name, found) in part.iter().zip(self.attributes_of(&ids)) {
                    let here =
                        ScrubAt { folder: at.folder, id: name.id, generation: name.generation, block: 0 };
                    if !goes_on() {
                        return Ok(Scrubbed { next: Some(here), ..done });
                    }
                    let from =
                        if (here.id, here.generation) == (at.id, at.generation) { at.block } else { 0 };
                    let next = match found {
                        Ok(found) => self.scrub_one(me, *name, found, from, &goes_on, &mut done),
                        Err(_) => {
                            done.unknown += 1;
                            None
                        }
                    };
                    if let Some(block) = next {
                        return Ok(Scrubbed { next: Some(ScrubAt { block, ..here }), ..done });
                    }
                }
            }
            at = ScrubAt { folder: at.folder + 1, ..ScrubAt::default() };
            if !goes_on() && at.folder < objects::FOLDERS {
                return Ok(Scrubbed { next: Some(at), ..done });
            }
        }
        Ok(done)
    }

    /// Checks one object from a block on; the block to go on with. `found` is the inode, as it was
    /// after the object was listed.
    fn scrub_one(
        &self,
        me: NodeNo,
        name: ObjectName,
        found: Option<Attributes>,
        from: u64,
        goes_on: &dyn Fn() -> bool,
        done: &mut Scrubbed,
    ) -> Option<u64> {
        let Ok(object) = self.objects.open(name) else { return None };
        let Ok(stat) = objects::stat(&object) else {
            done.unknown += 1;
            return None;
        };
        let Some(place) = place_here(me, name, found.as_ref()) else {
            self.remove_leftover(me, name, done);
            return None;
        };
        self.waiting.arrived.done(name);
        if from == 0 {
            done.objects += 1;
        }
        // People look for the file.
        let whole = found.as_ref().and_then(|found| found.chunk_of.as_ref()).map(|of| of.file);
        let damage = Damage { id: whole.unwrap_or(name.id), generation: name.generation };
        let length = found.as_ref().map_or(0, |found| found.bytes);
        if !place.writing && stat.bytes < length {
            // A truncation that was not told yet looks the same for a moment.
            let again = self.attributes(name.id).map_or(0, |again| again.bytes);
            if objects::stat(&object).is_ok_and(|now| now.bytes < again) {
                done.short.push(damage);
                return None;
            }
        }
        let next = match self.seals.verify(name, &object, from, goes_on) {
            Ok(verified) => {
                done.bytes += verified.bytes;
                if !verified.sealed && stat.bytes > 0 {
                    self.waiting.note(name, &stat);
                    done.unsealed += 1;
                }
                verified.next
            }
            Err(_) => {
                done.unknown += 1;
                None
            }
        };
        if next.is_none() && self.seals.is_damaged(name) {
            done.damaged.push(damage);
        }
        next
    }

    /// Removes an object that no inode named a moment ago, if that is still so.
    fn remove_leftover(&self, me: NodeNo, name: ObjectName, done: &mut Scrubbed) {
        // No copy comes in meanwhile.
        let _telling = self.telling(name.id);
        let Ok(object) = self.objects.open(name) else { return };
        // An inode's row is made before its object, and names it from then on. A copy is named
        // later.
        let age_ns = wall_ns().saturating_sub(objects::changed_ns(&object).unwrap_or(i64::MAX));
        if age_ns <= YOUNG_NS || self.waiting.arrived.has(name) {
            return;
        }
        match self.attributes_of(&[name.id]).pop() {
            Some(Ok(found)) if place_here(me, name, found.as_ref()).is_none() => {}
            Some(Ok(_)) => return,
            _ => {
                done.unknown += 1;
                return;
            }
        }
        let bytes = objects::stat(&object).map_or(0, |stat| stat.blocks * 512);
        self.seals.remove(name);
        if self.objects.remove(name).is_ok() {
            done.removed += 1;
            done.removed_bytes += bytes;
        }
    }
}

/// Where the inode says its bytes are, if it names the object of this node.
fn place_here(me: NodeNo, name: ObjectName, found: Option<&Attributes>) -> Option<&Place> {
    let place = found.and_then(|found| found.place.as_ref());
    place.filter(|place| {
        place.generation == name.generation && (place.holder == me || place.copies.contains(&me))
    })
}
