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
