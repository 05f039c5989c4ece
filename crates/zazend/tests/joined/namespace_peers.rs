//! Whom the nodes of a namespace take for a node: holders of the cluster key who are none, who say
//! to be another one, and who come from an address that nobody listed.

use crate::namespaces::*;
use std::collections::BTreeSet;
use std::time::Duration;
use zazen_call::{ClusterKey, Connection, Identity};
use zazen_core::{Error, ErrorKind};
use zazen_namespace::node::Envelope;
use zazen_namespace::operation::{Inode, Operation, Request};
use zazen_namespace::service::{
    Done, Introduced, MapView, Noticed, ObjectCall, ObjectDone, Requests, Responses, namespace_fn,
};
use zazen_namespace::{Epoch, Errno, Incarnation, InodeId, NodeNo};
use zazen_namespace_node::links::Envelopes;
use zazen_namespace_node::proof::NodeSecret;
use zazen_wire::{Message, service};

/// A hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A holder of the cluster key, connected to a node.
struct Holder(Connection);

impl Holder {
    fn of(cluster: &Cluster, at: usize) -> Holder {
        let key = ClusterKey::from_file(&cluster.key()).unwrap();
        let connection =
            Connection::tcp(&cluster.address(at), &key, &Identity::of_this_process(), PATIENCE).unwrap();
        Holder(connection)
    }

    fn call(&mut self, function: u16, payload: &[u8]) -> Result<Vec<u8>, Error> {
        self.0.call(service::NAMESPACE, function, payload, &[]).map(|reply| reply.payload)
    }

    /// Proves to be the node with this secret.
    fn prove(&mut self, secret: &NodeSecret) -> u128 {
        let this = std::cell::RefCell::new(self);
        let call = |function, payload: &[u8]| this.borrow_mut().call(function, payload);
        secret
            .introduce(
                "the node",
                |mine| Introduced::decode(&call(namespace_fn::INTRODUCE, &mine.encode())?),
                |_| true,
                |proof| call(namespace_fn::PROVE, &proof.encode()).map(drop),
            )
            .unwrap()
    }

    fn refused(&mut self, function: u16, payload: &[u8]) -> String {
        let error = self.call(function, payload).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        error.to_string()
    }
}

fn envelope(key: u128, address: &str) -> Vec<u8> {
    let (from, incarnation, epoch) = (NodeNo(2), Incarnation(1), Epoch(1));
    let address = address.to_owned();
    let envelope = Envelope { namespace: 0, from, key, incarnation, address, epoch, messages: Vec::new() };
    Envelopes::encode(&vec![envelope.encode()])
}

fn request(node: NodeNo) -> Vec<u8> {
    request_by(node, u64::from(node.0) << 48 | 1)
}

fn request_by(node: NodeNo, client: u64) -> Vec<u8> {
    let operation = Operation::GetAttributes(Inode { id: InodeId::ROOT });
    let credentials = zazen_core::Credentials { uid: 0, gid: 0, groups: Vec::new() };
    let (number, oldest) = (1, 1);
    let (incarnation, epoch, place) = (Incarnation(1), Epoch(1), None);
    let knows_chunks = Some(true);
    let request = Request {
        client,
        number,
        oldest,
        node,
        incarnation,
        epoch,
        credentials,
        operation,
        place,
        knows_chunks,
    };
    Requests { requests: vec![request] }.encode()
}

fn read_root() -> Vec<u8> {
    let (id, what) = (InodeId::ROOT, namespace_fn::READ);
    let (offset, bytes, flags, sum, call, again) = (0, 10, 0, 0, 0, 0);
    ObjectCall { id, generation: 1, what, offset, bytes, flags, sum, call, again }.encode()
}

#[test]
fn a_holder_of_the_cluster_key_is_no_node() {
    let cluster = Cluster::with(2, &[]);
    let mut holder = Holder::of(&cluster, 0);
    let notice = Noticed { passes_on: true, by: NodeNo(1), inodes: Vec::new(), entries: Vec::new() };
    let asked = [
        (namespace_fn::REQUEST, request(NodeNo(1))),
        (namespace_fn::PEER, envelope(1, "127.0.0.1:1")),
        (namespace_fn::OBJECT, read_root()),
        (namespace_fn::NOTICE, notice.encode()),
    ];
    for (function, payload) in &asked {
        assert!(holder.refused(*function, payload).contains("prove who they are"), "{function}");
    }
    // A proof that was not begun, and one by nobody.
    assert!(holder.call(namespace_fn::PROVE, &[0; 64]).is_err());
    holder.call(namespace_fn::INTRODUCE, &[7; 64]).unwrap();
    let error = holder.call(namespace_fn::PROVE, &[0; 64]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication);
    for (function, payload) in &asked {
        holder.refused(*function, payload);
    }
}

#[test]
fn a_node_speaks_for_itself_only() {
    let cluster = Cluster::with(2, &[]);
    let folder = |at| std::fs::File::open(cluster.data(at)).unwrap();
    let second = NodeSecret::load(std::os::fd::AsFd::as_fd(&folder(1))).unwrap();
    // The second node's own secret: what the second node may ask.
    let mut node = Holder::of(&cluster, 0);
    node.prove(&second);
    let done = node.call(namespace_fn::OBJECT, &read_root()).unwrap();
    let done: Done = ObjectDone::decode(&done).unwrap().done;
    assert_eq!(done.result(), Err(Errno::ESTALE), "the root has no bytes");
    let numbers = |at| cluster.client(at).hello().unwrap().node;
    let answered = node.call(namespace_fn::REQUEST, &request(numbers(1))).unwrap();
    assert_eq!(Responses::decode(&answered).unwrap().responses.len(), 1);
    node.call(namespace_fn::PEER, &envelope(second.key(), &cluster.address(1))).unwrap();
    // Not for the first, nor from another address.
    assert!(node.refused(namespace_fn::REQUEST, &request(numbers(0))).contains("is not node"));
    // Answers are kept for each client: by the number of another's it would get them, or spoil
    // them.
    let foreign = request_by(numbers(1), u64::from(numbers(0).0) << 48 | 1);
    assert!(node.refused(namespace_fn::REQUEST, &foreign).contains("client"));
    let first = NodeSecret::load(std::os::fd::AsFd::as_fd(&folder(0))).unwrap();
    let payload = envelope(first.key(), &cluster.address(0));
    assert!(node.refused(namespace_fn::PEER, &payload).contains("another node"));
    let elsewhere = envelope(second.key(), "127.0.0.1:1");
    assert!(node.refused(namespace_fn::PEER, &elsewhere).contains("does not prove"));

    // A key of one's own, and another node's name.
    let own = NodeSecret::generate().unwrap();
    let mut forger = Holder::of(&cluster, 0);
    assert_eq!(forger.prove(&own), first.key(), "the callee proves itself, too");
    for payload in [request(numbers(1)), request(NodeNo(77))] {
        forger.refused(namespace_fn::REQUEST, &payload);
    }
    forger.refused(namespace_fn::OBJECT, &read_root());
    let (one, two) = (cluster.address(0), cluster.address(1));
    for (key, address) in [(second.key(), &two), (own.key(), &two), (own.key(), &one), (first.key(), &one)] {
        forger.refused(namespace_fn::PEER, &envelope(key, address));
    }
    assert_eq!(forger.call(namespace_fn::PEER, &[0xff; 64]).unwrap_err().kind(), ErrorKind::Protocol);
}

#[test]
fn a_node_that_has_not_said_its_name_has_none() {
    let names = |map: MapView| -> BTreeSet<String> { map.nodes.into_iter().map(|node| node.name).collect() };
    let both = BTreeSet::from(["n0".to_owned(), "n1".to_owned()]);
    // A node may say its name before it is stopped: then the next cluster tries.
    let (cluster, ns) = (0..50)
        .find_map(|_| {
            let cluster = Cluster::with(2, &[]);
            let ns = cluster.client(0);
            cluster.pause(1);
            let known = names(ns.map().unwrap());
            if known == both {
                return None;
            }
            assert_eq!(known, BTreeSet::from([String::new(), "n0".to_owned()]), "its address is no name");
            Some((cluster, ns))
        })
        .expect("no second node was stopped before it said its name");
    cluster.resume(1);
    let nodes: BTreeSet<NodeNo> = ns.map().unwrap().nodes.iter().map(|node| node.node).collect();
    eventually("both say their names", || names(ns.map_with_names(&nodes).unwrap()) == both);
}

#[test]
fn who_is_not_listed_does_not_join() {
    let cluster = Cluster::with(2, &["--namespace-admit", "listed"]);
    let own = NodeSecret::generate().unwrap();
    let mut stranger = Holder::of(&cluster, 0);
    stranger.prove(&own);
    let refused = stranger.refused(namespace_fn::PEER, &envelope(own.key(), "127.0.0.1:1"));
    assert!(refused.contains("list of nodes"), "{refused}");
    eventually("the log names the address", || cluster.log(0).contains("127.0.0.1:1"));
}
