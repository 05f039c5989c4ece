//! Numbers of nodes as users type them: `4096`, `512..16384`, `64,100,1000`.

use zazen_sim::queue::NODES_MAX;

/// The scales of a sweep, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scales(pub(crate) Vec<u32>);

impl std::str::FromStr for Scales {
    type Err = String;

    fn from_str(text: &str) -> Result<Scales, String> {
        let one = |part: &str| match part.trim().replace('_', "").parse::<u32>() {
            Ok(nodes) if (1..NODES_MAX).contains(&nodes) => Ok(nodes),
            _ => Err(format!("{part:?} is not a number of nodes between 1 and {}", NODES_MAX - 1)),
        };
        if let Some((first, last)) = text.split_once("..") {
            let (first, last) = (one(first)?, one(last)?);
            if first > last {
                return Err(format!("{text:?} runs backwards; write {last}..{first}"));
            }
            let mut scales: Vec<u32> =
                std::iter::successors(Some(first), |nodes| nodes.checked_mul(2).filter(|next| *next < last))
                    .collect();
            if first < last {
                scales.push(last);
            }
            return Ok(Scales(scales));
        }
        let mut scales = text.split(',').map(one).collect::<Result<Vec<u32>, String>>()?;
        scales.sort_unstable();
        scales.dedup();
        Ok(Scales(scales))
    }
}

#[cfg(test)]
mod tests {
    use super::Scales;

    #[test]
    fn ranges_double_and_end_where_they_should() {
        let check = |text: &str, expected: &[u32]| assert_eq!(text.parse::<Scales>().unwrap().0, expected);
        check("4096", &[4096]);
        check("512..4096", &[512, 1024, 2048, 4096]);
        check("512..5000", &[512, 1024, 2048, 4096, 5000]);
        check("7..7", &[7]);
        check("1000,64,100,64", &[64, 100, 1000]);
        assert_eq!("512..2000376".parse::<Scales>().unwrap().0.len(), 13);
        for wrong in ["", "0", "-3", "9..3", "1..x", "99999999999"] {
            assert!(wrong.parse::<Scales>().is_err(), "{wrong}");
        }
    }
}
