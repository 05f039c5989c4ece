//! Links, as routes name them.

/// What kind of cable a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Between a node and its router.
    Interface,
    /// Between routers.
    Fabric,
    /// Between groups of a dragonfly.
    Global,
}

/// A step of a route: the link, counted from 0 among the links between routers, and the router
/// behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link.
    pub link: u32,
    /// Where it leads.
    pub router: u32,
}

/// The beginning of a route: links whose numbers follow each other, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first link.
    pub link: u32,
    /// How many links these are.
    pub links: u32,
    /// Whether the numbers rise; else they fall.
    pub rises: bool,
    /// Where the last link leads.
    pub router: u32,
}
