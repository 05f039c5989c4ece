//! What a node proves to another: that it is the node with a certain key.
//!
//! A node has a pair of Ed25519 keys. The secret one never leaves the node's folder. The node's key
//! in the map is a digest of the public one. When a connection between two nodes begins, each side
//! signs both sides' random numbers and public keys:
//!
//! ```text
//!  caller                                             callee
//!    | -- INTRODUCE  nonce, public key ----------------> |
//!    | <- reply      nonce, public key, signature ------ |   the caller checks or closes
//!    | -- PROVE      signature ------------------------> |   the callee checks or refuses
//! ```
//!
//! A signature names its side and both public keys. So a callee cannot hand a caller's signature on
//! to a third node, and nobody can send one back.

use crate::folder::replace;
use ed25519_compact::{KeyPair, PublicKey, Seed, Signature};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::random_u128;
use zazen_namespace::service::{Introduced, Introduction, Proof};
use zazen_wire::checksum::frame_checksum;
use zazen_wire::codec::{Reader, Writer};

/// The file of the secret key in the node's folder.
const FILE: &str = "secret";
/// What the file begins with; version 1.
const MAGIC: &[u8; 8] = b"ZZNSKEY1";
/// Bytes of the file: magic, seed, CRC-64/NVME of both.
const FILE_BYTES: usize = 8 + 32 + 8;
/// What a signature of ours begins with.
const LABEL: &[u8] = b"zazen namespace node 1 ";

/// Who signs.
#[derive(Clone, Copy)]
enum Side {
    Caller,
    Callee,
}

/// A node's pair of keys.
pub struct NodeSecret(KeyPair);

impl std::fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeSecret(of node {:032x})", self.key())
    }
}

/// A proof that is under way, as the callee knows it.
pub struct Begun {
    nonces: [[u8; 32]; 2],
    keys: [[u8; 32]; 2],
}

fn random() -> Result<[u8; 32]> {
    let mut writer = Writer::new();
    writer.u128(random_u128()?);
    writer.u128(random_u128()?);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(&writer.into_bytes());
    Ok(bytes)
}

/// The key by which the map knows the node with this public key. Never 0.
fn key_of(public: &[u8; 32]) -> u128 {
    let mut hash = Sha256::new();
    hash.update(b"zazen namespace node key 1");
    hash.update(public);
    // A digest has 32 bytes.
    Reader::new("digest", &hash.finalize()).u128().unwrap_or(1).max(1)
}

fn refused(peer: &str) -> Error {
    let why = format!("{peer} does not prove that it is the node that it says it is");
    Error::new(ErrorKind::Authentication, why)
}

impl NodeSecret {
    /// A new pair.
    pub fn generate() -> Result<NodeSecret> {
        Ok(NodeSecret::of(random()?))
    }

    fn of(seed: [u8; 32]) -> NodeSecret {
        NodeSecret(KeyPair::from_seed(Seed::new(seed)))
    }

    /// Makes a new pair, in the place of the folder's earlier one.
    pub fn make(folder: BorrowedFd<'_>) -> Result<NodeSecret> {
        let seed = random()?;
        let content = [MAGIC.as_slice(), &seed].concat();
        let mut writer = Writer::new();
        writer.raw(&content);
        writer.u64(frame_checksum(&content));
        replace(folder, FILE, &writer.into_bytes())
            .map_err(|error| Error::io("the node's secret key", error))?;
        Ok(NodeSecret::of(seed))
    }

    /// The folder's pair. Fails with `Corrupt` if there is none, or if it is damaged.
    pub fn load(folder: BorrowedFd<'_>) -> Result<NodeSecret> {
        let corrupt = |why: &str| {
            let remedy = "restore the file `secret` of the namespace's folder, or empty the folder, which \
                          makes the node a new one";
            Error::new(ErrorKind::Corrupt, format!("the node's secret key {why}: {remedy}"))
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = match rustix::fs::openat(folder, FILE, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Err(corrupt("is missing")),
            opened => opened.map_err(|errno| Error::io("the node's secret key", errno.into()))?,
        };
        let mut bytes = Vec::new();
        let read = File::from(opened).take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| Error::io("the node's secret key", error))?;
        let Some((content, sum)) = bytes.split_last_chunk::<8>().filter(|_| bytes.len() == FILE_BYTES) else {
            return Err(corrupt("has a wrong length"));
        };
        if !content.starts_with(MAGIC) || frame_checksum(content) != Reader::new("secret", sum).u64()? {
            return Err(corrupt("is damaged"));
        }
        let mut seed = [0; 32];
        seed.copy_from_slice(&content[MAGIC.len()..]);
        Ok(NodeSecret::of(seed))
    }

    /// The key by which the map knows this node.
    pub fn key(&self) -> u128 {
        key_of(&self.public())
    }

    fn public(&self) -> [u8; 32] {
        *self.0.pk
    }

    fn sign(&self, side: Side, begun: &Begun) -> [u8; 64] {
        *self.0.sk.sign(begun.text(side), None)
    }

    /// The caller's half: `ask` calls the callee, and `peer` names it in errors. The key that the
    /// callee has proved, if `accepts` takes it; before that the caller proves nothing.
    pub fn introduce(
        &self,
        peer: &str,
        introduce: impl FnOnce(&Introduction) -> Result<Introduced>,
        accepts: impl FnOnce(u128) -> bool,
        prove: impl FnOnce(&Proof) -> Result<()>,
    ) -> Result<u128> {
        let mine = Introduction { nonce: random()?, key: self.public() };
        let theirs = introduce(&mine)?;
        let begun = Begun { nonces: [mine.nonce, theirs.nonce], keys: [mine.key, theirs.key] };
        if !begun.is_signed(Side::Callee, &theirs.signature) {
            return Err(refused(peer));
        }
        let key = key_of(&theirs.key);
        if !accepts(key) {
            let why = format!("{peer} is not the node that the namespace's map has there");
            return Err(Error::new(ErrorKind::Authentication, why));
        }
        prove(&Proof { signature: self.sign(Side::Caller, &begun) })?;
        Ok(key)
    }

    /// The callee's half: the answer, and what is to be proved.
    pub fn introduced(&self, theirs: &Introduction) -> Result<(Introduced, Begun)> {
        let (nonce, key) = (random()?, self.public());
        let begun = Begun { nonces: [theirs.nonce, nonce], keys: [theirs.key, key] };
        let signature = self.sign(Side::Callee, &begun);
        Ok((Introduced { nonce, key, signature }, begun))
    }
}

impl Begun {
    fn text(&self, side: Side) -> Vec<u8> {
        let side = match side {
            Side::Caller => b"caller".as_slice(),
            Side::Callee => b"callee".as_slice(),
        };
        [LABEL, side, &self.nonces.concat(), &self.keys.concat()].concat()
    }

    fn is_signed(&self, side: Side, signature: &[u8; 64]) -> bool {
        let by = match side {
            Side::Caller => self.keys[0],
            Side::Callee => self.keys[1],
        };
        let signature = Signature::new(*signature);
        PublicKey::new(by).verify(self.text(side), &signature).is_ok()
    }

    /// The key that the caller has proved. `Authentication` if it has not.
    pub fn proved(&self, proof: &Proof) -> Result<u128> {
        match self.is_signed(Side::Caller, &proof.signature) {
            true => Ok(key_of(&self.keys[0])),
            false => Err(refused("the caller")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// A whole proof between two nodes: what the callee and the caller learn.
    fn meet(caller: &NodeSecret, callee: &NodeSecret) -> (u128, u128) {
        let (mut begun, mut learned) = (None, 0);
        let introduce = |mine: &Introduction| {
            let (answer, started) = callee.introduced(mine)?;
            begun = Some(started);
            Ok(answer)
        };
        let mut sent = None;
        let prove = |proof: &Proof| {
            sent = Some(proof.clone());
            Ok(())
        };
        let callee_key = caller.introduce("callee", introduce, |_| true, prove).unwrap();
        if let (Some(begun), Some(sent)) = (begun, sent) {
            learned = begun.proved(&sent).unwrap();
        }
        (learned, callee_key)
    }

    #[test]
    fn both_sides_learn_who_the_other_is() {
        let (one, two) = (NodeSecret::generate().unwrap(), NodeSecret::generate().unwrap());
        assert_eq!(meet(&one, &two), (one.key(), two.key()));
        assert_ne!(one.key(), two.key());
    }

    #[test]
    fn a_proof_holds_for_its_connection_side_and_callee_alone() {
        let secrets: Vec<_> = (0..3).map(|_| NodeSecret::generate().unwrap()).collect();
        let [one, two, three] = secrets.as_slice() else { unreachable!() };
        let mine = Introduction { nonce: random().unwrap(), key: one.public() };
        let (of_two, begun) = two.introduced(&mine).unwrap();
        let proof = Proof {
            signature: one.sign(Side::Caller, &Begun { nonces: begun.nonces, keys: [mine.key, of_two.key] }),
        };
        assert_eq!(begun.proved(&proof).unwrap(), one.key());
        // Another connection, another callee, the callee's own signature, another signer.
        let (_, again) = two.introduced(&mine).unwrap();
        let (_, elsewhere) = three.introduced(&mine).unwrap();
        let echoed = Proof { signature: of_two.signature };
        let by_three = Proof { signature: three.sign(Side::Caller, &begun) };
        for (begun, proof) in [(&again, &proof), (&elsewhere, &proof), (&begun, &echoed), (&begun, &by_three)]
        {
            assert_eq!(begun.proved(proof).unwrap_err().kind(), ErrorKind::Authentication);
        }
        // Somebody who shows another node's public key.
        let shown = |mine: &Introduction| {
            let (answer, _) = three.introduced(mine)?;
            Ok(Introduced { key: two.public(), ..answer })
        };
        let error = one.introduce("it", shown, |_| true, |_| unreachable!("proves nothing")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Authentication);
        // The right proof of a node that is not meant.
        let other = |mine: &Introduction| three.introduced(mine).map(|(answer, _)| answer);
        let error = one
            .introduce("it", other, |key| key == two.key(), |_| unreachable!("proves nothing"))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Authentication);
    }

    #[test]
    fn a_secret_is_kept_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = File::open(dir.path()).unwrap();
        assert_eq!(NodeSecret::load(folder.as_fd()).unwrap_err().kind(), ErrorKind::Corrupt);
        let made = NodeSecret::make(folder.as_fd()).unwrap();
        assert_eq!(NodeSecret::load(folder.as_fd()).unwrap().key(), made.key());
        let path = dir.path().join(FILE);
        let bytes = std::fs::read(&path).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            assert_eq!(NodeSecret::load(folder.as_fd()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_ne!(NodeSecret::make(folder.as_fd()).unwrap().key(), made.key());
    }

    #[test]
    fn numbers_of_rfc_8032_are_signed_as_there() {
        // Test 1 of section 7.1: the empty message.
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
        };
        let seed = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let secret = NodeSecret::of(seed.try_into().unwrap());
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(secret.public().to_vec(), hex(public));
        let signature = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e0652249\
                         01555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";
        assert_eq!(secret.0.sk.sign(b"", None).to_vec(), hex(signature));
    }
}
