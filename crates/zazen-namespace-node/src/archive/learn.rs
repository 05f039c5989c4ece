//! Which part of the archive is the namespace's: an attribute of the root directory names it.

use crate::archive::folders::{Folders, open_root};
use crate::archive::records::is_id;
use crate::archive::state::ArchiveTold;
use crate::node::NamespaceNode;
use crate::route::root;
use zazen_namespace::operation::{Answer, GetXattr, Operation, SetXattr};
use zazen_namespace::{Errno, InodeId, Name};

/// The attribute.
const ID: &[u8] = b"trusted.zazen.archive";

impl NamespaceNode {
    /// The archive; `Err` while it is not there, which the status says.
    pub(super) fn archive_folders(&self, told: &ArchiveTold) -> std::result::Result<Folders, ()> {
        let opened = self.learn_archive(told).and_then(|opened| match opened {
            Some(folders) => Ok(folders),
            None => self.archive.known_folders(),
        });
        match opened {
            Ok(folders) => {
                self.archive.trouble(None);
                Ok(folders)
            }
            Err(why) => {
                self.archive.trouble(Some(why));
                Err(())
            }
        }
    }

    /// Asks for the namespace's part of the archive, which the first node that needs it makes.
    fn learn_archive(&self, told: &ArchiveTold) -> std::result::Result<Option<Folders>, String> {
        if self.archive.is_learned() {
            return Ok(None);
        }
        let name = || Name::new(ID).map_err(|errno| errno.to_string());
        let get = Operation::GetXattr(GetXattr { id: InodeId::ROOT, name: name()? });
        let known = |answer: Answer| match answer {
            Answer::Bytes(value) => String::from_utf8(value.bytes)
                .ok()
                .filter(|id| is_id(id))
                .ok_or_else(|| "the namespace's attribute of the archive is none".to_owned()),
            _ => Err("the namespace answers something else".to_owned()),
        };
        let asked = |errno: Errno| format!("the namespace's part of the archive: {errno}");
        match self.route_one(root(), get.clone()) {
            Ok(answer) => {
                self.archive.learned(known(answer)?);
                return Ok(None);
            }
            Err(Errno::ENODATA) => {}
            Err(errno) => return Err(asked(errno)),
        }
        let number = zazen_env::random_u128().map_err(|error| error.to_string())?;
        let id = format!("{number:032x}");
        let folders = Folders::open(open_root(&told.root)?, &id, true)?;
        let value = Some(id.clone().into_bytes());
        let set = SetXattr { id: InodeId::ROOT, name: name()?, value, create: true, replace: false };
        match self.route_one(root(), Operation::SetXattr(set)) {
            Ok(_) => {
                self.archive.learned(id);
                Ok(Some(folders))
            }
            // Another node was quicker.
            Err(Errno::EEXIST) => {
                folders.unmake(&id);
                let answer = self.route_one(root(), get).map_err(asked)?;
                self.archive.learned(known(answer)?);
                Ok(None)
            }
            // It may have been set all the same.
            Err(errno) => Err(asked(errno)),
        }
    }
}
