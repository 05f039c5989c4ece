//! Extents of structured pieces, and which cells two pieces share.
//!
//! Pieces that were written with ghost layers hold cells of their neighbours. VTK's own reader puts
//! all pieces into one grid, where such a cell is once. As blocks, the pieces would have it twice.

use zazen_core::{Error, ErrorKind, Result};

/// First and last point along x, y and z.
pub(crate) type Extent = [i32; 6];

/// The most pieces that one piece may share cells with.
const NEIGHBOURS_MAX: usize = 256;

/// For each piece, the extents of the pieces before it that share cells with it.
pub(crate) fn covered_before(extents: &[Extent]) -> Result<Vec<Vec<Extent>>> {
    let axis = (0..3).max_by_key(|axis| {
        let mut begins: Vec<i32> = extents.iter().map(|extent| extent[2 * axis]).collect();
        begins.sort_unstable();
        begins.dedup();
        begins.len()
    });
    let axis = axis.unwrap_or(0);
    let mut order: Vec<usize> = (0..extents.len()).collect();
    order.sort_by_key(|at| extents[*at][2 * axis]);
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); extents.len()];
    for (position, &one) in order.iter().enumerate() {
        let reach = extents[one][2 * axis + 1];
        let near = order[position + 1..].iter().take_while(|other| extents[**other][2 * axis] <= reach);
        for &other in near.filter(|other| share_cells(&extents[one], &extents[**other])) {
            found[one.max(other)].push(one.min(other));
            if found[one.max(other)].len() > NEIGHBOURS_MAX {
                let why = format!("more than {NEIGHBOURS_MAX} pieces share cells with one piece");
                return Err(Error::new(ErrorKind::TooLarge, why));
            }
        }
    }
    Ok(found.into_iter().map(|before| before.into_iter().map(|at| extents[at]).collect()).collect())
}

fn share_cells(one: &Extent, other: &Extent) -> bool {
    (0..3).all(|axis| {
        let (low, high) = (one[2 * axis].max(other[2 * axis]), one[2 * axis + 1].min(other[2 * axis + 1]));
        let flat = |extent: &Extent| extent[2 * axis] == extent[2 * axis + 1];
        low < high || (low == high && flat(one) && flat(other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_share_cells_only_if_they_overlap() {
        fn check(extents: &[Extent], expected: &[&[usize]]) {
            let expected: Vec<Vec<Extent>> =
                expected.iter().map(|before| before.iter().map(|at| extents[*at]).collect()).collect();
            assert_eq!(covered_before(extents).unwrap(), expected);
        }
        // They share a face of points, but no cell.
        check(&[[0, 4, 0, 8, 0, 8], [4, 8, 0, 8, 0, 8]], &[&[], &[]]);
        check(&[[0, 5, 0, 8, 0, 8], [4, 8, 0, 8, 0, 8]], &[&[], &[0]]);
        check(&[[4, 8, 0, 8, 0, 0], [0, 5, 0, 8, 0, 0], [0, 8, 8, 9, 0, 0]], &[&[], &[0], &[]]);
        // Flat pieces at unlike heights share nothing.
        check(&[[0, 8, 0, 8, 0, 0], [0, 8, 0, 8, 1, 1], [0, 8, 0, 8, 1, 1]], &[&[], &[], &[1]]);
        check(&[], &[]);
        let alike = vec![[0, 1, 0, 1, 0, 1]; NEIGHBOURS_MAX + 2];
        assert_eq!(covered_before(&alike).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
