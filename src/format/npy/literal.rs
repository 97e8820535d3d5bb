//! The few literals of Python that headers are made of.

/// Deeper ones are refused. A header has a tuple in a dict; one of fields has lists in lists.
const DEPTH_MOST: usize = 16;

/// A value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal<'a> {
    /// The bytes between the quotes, escapes and all.
    Str(&'a [u8]),
    Bool(bool),
    Int(u64),
    None,
    Tuple(Vec<Literal<'a>>),
    List(Vec<Literal<'a>>),
}

/// What was expected and not found, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: &'static str,
}

type Parsed<T> = Result<T, Fault>;

/// The entries of a dict, and nothing else but space. Keys are strings; none is there twice.
pub(super) fn dict(text: &[u8]) -> Parsed<Vec<(&[u8], Literal<'_>)>> {
    let mut parser = Parser { text, at: 0 };
    parser.space();
    parser.expect(b'{', "a dict")?;
    let mut entries: Vec<(&[u8], Literal<'_>)> = Vec::new();
    parser.items(b'}', |parser| {
        let at = parser.at;
        let Literal::Str(key) = parser.value(0)? else {
            return Err(Fault {
                at,
                what: "a key that is a string",
            });
        };
        parser.space();
        parser.expect(b':', "a colon")?;
        parser.space();
        let value = parser.value(0)?;
        // There are three keys in a header that is right, so looking through them all is nothing; more end it.
        if entries.len() >= 3 || entries.iter().any(|(known, _)| *known == key) {
            return Err(Fault {
                at,
                what: "three keys, each once",
            });
        }
        entries.push((key, value));
        Ok(())
    })?;
    parser.space();
    if parser.at < text.len() {
        return Err(Fault {
            at: parser.at,
            what: "the end of the header",
        });
    }
    Ok(entries)
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn fault<T>(&self, what: &'static str) -> Parsed<T> {
        Err(Fault { at: self.at, what })
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Parsed<()> {
        if self.peek() != Some(byte) {
            return self.fault(what);
        }
        self.at += 1;
        Ok(())
    }

    /// Items with commas between them, up to `close`. True: the last one had a comma behind it.
    fn items(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Parsed<()>) -> Parsed<bool> {
        let mut comma = false;
        let mut first = true;
        loop {
            self.space();
            if self.peek() == Some(close) {
                self.at += 1;
                return Ok(comma);
            }
            if !first && !comma {
                return self.fault("a comma, or the end of a list");
            }
            item(self)?;
            first = false;
            self.space();
            comma = self.peek() == Some(b',');
            self.at += usize::from(comma);
        }
    }

    fn value(&mut self, depth: usize) -> Parsed<Literal<'a>> {
        if depth > DEPTH_MOST {
            return self.fault("fewer brackets");
        }
        match self.peek() {
            Some(quote @ (b'\'' | b'"')) => self.string(quote),
            Some(b'0'..=b'9') => self.int(),
            Some(b'(') => {
                self.at += 1;
                let mut values = Vec::new();
                let comma = self.items(b')', |parser| {
                    values.push(parser.value(depth + 1)?);
                    Ok(())
                })?;
                // One value in brackets is that value.
                match (values.len(), comma) {
                    (1, false) => Ok(values.remove(0)),
                    _ => Ok(Literal::Tuple(values)),
                }
            }
            Some(b'[') => {
                self.at += 1;
                let mut values = Vec::new();
                self.items(b']', |parser| {
                    values.push(parser.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Literal::List(values))
            }
            _ => {
                for (word, value) in [
                    ("True", Literal::Bool(true)),
                    ("False", Literal::Bool(false)),
                    ("None", Literal::None),
                ] {
                    if self
                        .text
                        .get(self.at..)
                        .is_some_and(|rest| rest.starts_with(word.as_bytes()))
                    {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                self.fault("a value")
            }
        }
    }

    fn string(&mut self, quote: u8) -> Parsed<Literal<'a>> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek() {
                Some(byte) if byte == quote => {
                    let text = self.text.get(start..self.at).unwrap_or_default();
                    self.at += 1;
                    return Ok(Literal::Str(text));
                }
                Some(b'\\') => self.at += 2,
                Some(b'\n') | None => return self.fault("the end of a string"),
                Some(_) => self.at += 1,
            }
        }
    }

    /// A number without sign. Python 2 put an `L` behind those that were long.
    fn int(&mut self) -> Parsed<Literal<'a>> {
        let mut value: u64 = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            let next = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(u64::from(digit - b'0')));
            let Some(next) = next else {
                return self.fault("a smaller number");
            };
            value = next;
            self.at += 1;
        }
        self.at += usize::from(self.peek() == Some(b'L'));
        Ok(Literal::Int(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Parsed<Literal<'_>> {
        let text = text.as_bytes();
        Ok(dict(text)?.remove(0).1)
    }

    #[test]
    fn values_are_read() {
        for (text, value) in [
            ("{'a': 'x'}", Literal::Str(b"x")),
            (" {\"a\":\"it's\",} \n", Literal::Str(b"it's")),
            ("{'a': True}", Literal::Bool(true)),
            ("{'a': None}", Literal::None),
            ("{'a': ()}", Literal::Tuple(vec![])),
            ("{'a': (3)}", Literal::Int(3)),
            ("{'a': (3,)}", Literal::Tuple(vec![Literal::Int(3)])),
            (
                "{'a': ( 3L ,4 )}",
                Literal::Tuple(vec![Literal::Int(3), Literal::Int(4)]),
            ),
            (
                r"{'a': ['\'', []]}",
                Literal::List(vec![Literal::Str(br"\'"), Literal::List(vec![])]),
            ),
            ("{'a': 18446744073709551615}", Literal::Int(u64::MAX)),
        ] {
            assert_eq!(one(text), Ok(value), "{text}");
        }
        assert_eq!(dict(b"{}"), Ok(vec![]));
    }

    #[test]
    fn everything_else_is_a_fault_at_its_place() {
        for (text, at) in [
            ("", 0),
            ("[]", 0),
            ("{", 1),
            ("{'a'", 4),
            ("{'a':", 5),
            ("{'a' 1}", 5),
            ("{a: 1}", 1),
            ("{1: 1}", 1),
            ("{'a': 1 'b': 2}", 8),
            ("{'a': 1}}", 8),
            ("{'a': -1}", 6),
            ("{'a': 1.5}", 7),
            ("{'a': (,)}", 7),
            ("{'a': (1,,)}", 9),
            ("{'a': 18446744073709551616}", 25),
            ("{'a': 'x}", 9),
            ("{'a': 'x\\'}", 11),
            ("{'a': 'x\n'}", 8),
            ("{'a': 1, 'a': 2}", 9),
            ("{'a': 1, 'b': 2, 'c': 3, 'd': 4}", 25),
            ("{'a': Truex}", 10),
            ("{'a': '\\", 9),
        ] {
            let fault = dict(text.as_bytes()).unwrap_err();
            assert_eq!(
                fault.at.min(text.len()),
                at.min(text.len()),
                "{text}: {fault:?}"
            );
        }
    }

    #[test]
    fn depth_is_bounded() {
        for open in ["(", "["] {
            let text = format!("{{'a': {}", open.repeat(60_000));
            assert_eq!(dict(text.as_bytes()).unwrap_err().what, "fewer brackets");
        }
    }
}
