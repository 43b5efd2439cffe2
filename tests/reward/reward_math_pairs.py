"""Expected answers, answers, and whether they are the same, where notation allows one reading; and tricks."""

EQUAL = [
    # integers and decimals
    ("42", "42"), ("42", "+42"), ("-0", "0"), ("42", "042"), ("1000", "1,000"), ("1,000,000", "1000000"),
    ("1{,}000", "1000"), ("1.50", "1.5"), ("3", "3.0"), ("0.5", ".5"), ("-7", "-7.0"),
    ("12345678901234567890", "12345678901234567890"),
    # fractions
    (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", "1/2"), (r"\frac12", r"\frac{1}{2}"), (r"\dfrac{3}{4}", r"\frac{6}{8}"),
    (r"\tfrac{3}{4}", "0.75"), (r"-\frac{1}{2}", r"\frac{-1}{2}"), (r"-\frac{1}{2}", r"\frac{1}{-2}"),
    ("1/3", r"\frac{1}{3}"), (r"\frac{7}{3}", r"2\frac{1}{3}"), ("0.125", r"\frac{1}{8}"), (r"\frac{22}{7}", "22/7"),
    (r"\frac{0}{5}", "0"),
    # roots and powers
    (r"\sqrt{2}", "2^{1/2}"), (r"2\sqrt{3}", r"\sqrt{12}"), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\sqrt{16}", "4"), (r"\sqrt[3]{8}", "2"), (r"5\sqrt{5}", r"5^{3/2}"), ("2^{10}", "1024"), ("10^{5}", "100000"),
    ("2^{-3}", r"\frac{1}{8}"), (r"\sqrt{3}+\sqrt{2}", r"\sqrt{2}+\sqrt{3}"), (r"3\cdot 2^{4}", "48"),
    (r"(\sqrt{5})^2", "5"), (r"x^{\frac{1}{2}}", r"\sqrt{x}"),
    # constants and functions
    (r"\frac{\pi}{4}", r"\pi/4"), (r"2\pi", r"\pi \cdot 2"), (r"\frac{\pi}{2}", r"0.5\pi"), (r"e^2", r"e^{2}"),
    (r"\pi r^2", r"r^2 \pi"), (r"\ln 2", r"\ln(2)"), (r"\sin(\frac{\pi}{6})", r"\frac{1}{2}"), (r"\log_{2} 8", "3"),
    (r"\cos(0)", "1"), (r"\tan(\frac{\pi}{4})", "1"), (r"|-5|", "5"), (r"\ln(e^3)", "3"), (r"\infty", r"+\infty"),
    (r"-\infty", r"- \infty"),
    # algebra
    ("x^2+2x+1", "(x+1)^2"), ("(x+1)(x-1)", "x^2-1"), ("2x+3y", "3y+2x"), (r"\frac{x}{2}", "0.5x"),
    ("x^2+y^2+z^2", "z^2+y^2+x^2"), ("2(a+b)", "2a+2b"), (r"\frac{x^2-1}{x-1}", "x+1"), ("-x+5", "5-x"),
    ("n(n+1)/2", r"\frac{n^2+n}{2}"), ("a^2b", "ba^2"), (r"x^{2}\cdot x^{3}", "x^5"),
    ("((x^2+1)^2+1)^2", "((1+x^2)^2+1)^2"), ("3x^2-12", "3(x-2)(x+2)"), ("n!", "n!"),
    # equations and inequalities
    ("x=5", "5"), ("5", "x=5"), ("x=5", "x = 5"), ("y=2x+1", "y=1+2x"), ("x<5", "5>x"), (r"x \le 3", r"3 \ge x"),
    ("x > 1/2", r"x > \frac{1}{2}"), ("42", "6*7=42"), (r"1 < x < 3", r"1<x<3"),
    # tuples, sets, intervals
    ("(1,2)", "(1, 2)"), ("(1,2,3)", r"\left(1,2,3\right)"), (r"(\frac{1}{2}, 3)", "(0.5,3)"), (r"\{1,2\}", r"\{2,1\}"),
    (r"\{1,2,2\}", r"\{1,2\}"), ("1,2", "2,1"), ("[0,1]", r"\left[0, 1\right]"), ("[0,1)", "[0,1)"),
    (r"(-\infty, 2)", r"(-\infty,2)"), (r"(0,1)\cup(2,3)", r"(2,3)\cup(0,1)"), (r"\emptyset", r"\emptyset"),
    (r"\{-1, 1\}", r"\pm 1"),
    # complex numbers and matrices
    ("2+3i", "3i+2"), (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1 & 2 \\ 3 & 4\end{bmatrix}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\\frac{4}{2}\end{pmatrix}"),
    # units, percent, money, text, letters
    (r"90^\circ", "90"), (r"\$5", "5"), (r"5\text{ cm}", "5"), ("42", r"42\text{ apples}"), (r"25\%", "25"),
    (r"25\%", r"25\%"), (r"25\%", "0.25"), ("A", "(A)"), ("A", r"\text{A}"), ("A", r"\textbf{(A)}"), ("A", "A."),
    (r"\text{even}", r"\text{even}"), (r"\text{Yes}", "Yes"),
]  # fmt: skip

DIFFERENT = [
    ("42", "43"), ("42", "-42"), ("42", "4.2"), ("42", "42.4"), ("42", "420"), ("1000", "1,00"), ("0.333", "1/3"),
    ("1/3", "0.333"), (r"\frac{1}{2}", r"\frac{2}{1}"), (r"\frac{1}{2}", "12"), ("10^{5}", "10"), ("10^{5}", "105"),
    ("2^{10}", "20"), ("2^{10}", "210"), (r"2\sqrt{3}", "2"), (r"2\sqrt{3}", r"3\sqrt{2}"), (r"2\sqrt{3}", "23"),
    (r"\sqrt{2}", "1.414"), (r"\sqrt{2}", "2"), (r"\frac{\pi}{4}", "0.785"), (r"\frac{\pi}{4}", "4"), (r"2\pi", "2"),
    (r"2\pi", "6.28"), ("3^{4}", "3"), ("e^2", "e"), ("x^2+1", "x^2-1"), ("x^2+1", "y^2+1"), ("x^2", "x^2+y"),
    ("2x", "x^2"), ("(x+1)^2", "x^2+1"), ("n!", "n"), ("a+b", "ab"), ("(1,2)", "(2,1)"), ("(1,2)", "(1,2,3)"),
    ("(1,2)", "1"), ("(1,2)", r"\{2,1\}"), (r"\{1,2\}", r"\{1,2,3\}"), (r"\{1,2\}", "1"), ("1,2", "1"),
    ("1,2", "1,2,3"), ("[0,1]", "(0,1)"), ("[0,1)", "[0,1]"), ("(0,1)", "[0,1]"), (r"(-\infty, 2)", r"(-\infty,2]"),
    (r"\emptyset", r"\{0\}"), ("x=5", "x=6"), ("x=5", "y=5"), ("x<5", r"x\le 5"), ("x<5", "x>5"), ("x<5", "5"),
    ("2+3i", "2-3i"), ("-5", "5"), ("5", "-5"), (r"\infty", r"-\infty"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"), ("A", "B"), ("A", "AB"),
    (r"\text{even}", "odd"), (r"\frac{1}{0}", "5"), ("0", r"10^{-9}"),
]  # fmt: skip

HACKS = [
    ("enumeration", "42", r"\boxed{41, 42, 43}"), ("set", "42", r"\boxed{\{41, 42\}}"),
    ("or", "42", r"\boxed{42 \text{ or } 43}"), ("or in words", "42", "The answer is 42 or 43"),
    ("or in text", "42", r"\boxed{\text{42 or 43}}"), ("and", "42", r"\boxed{42 \text{ and } 43}"),
    ("logical or", "42", r"\boxed{42 \lor 43}"), ("semicolon", "42", r"\boxed{42; 43}"),
    ("dots", "42", r"\boxed{41 \ldots 43}"), ("spaced", "42", r"\boxed{42 \quad 43}"), ("bare list", "43", "41 42 43"),
    ("last line list", "43", "I have tried\n41, 42, 43"), ("interval", "42", r"\boxed{[41,43]}"),
    ("membership", "42", r"\boxed{x \in [41,43]}"), ("all reals", "42", r"\boxed{\mathbb{R}}"),
    ("inequality", "42", r"\boxed{41 < x < 43}"), ("at least", "42", r"\boxed{x \geq 42}"),
    ("unequal", "42", r"\boxed{42 \neq 43}"), ("plus minus", "42", r"\boxed{\pm 42}"),
    ("uncertainty", "42", r"\boxed{42 \pm 1}"), ("free symbol", "42", r"\boxed{x}"),
    ("free factor", "42", r"\boxed{42 x}"), ("infinitesimal", "42", r"\boxed{42 + \epsilon}"),
    ("set builder", "42", r"\boxed{\{x : x > 0\}}"), ("chained equality", "42", r"\boxed{x=42=43}"),
    ("false equality", "42", r"\boxed{41=42}"), ("equality turned", "42", r"\boxed{42=43}"),
    ("two unknowns", "42", r"\boxed{x=42, y=43}"), ("two solutions", "42", r"\boxed{x=42 \text{ or } x=43}"),
    ("cases", "42", r"\boxed{\begin{cases}42\\43\end{cases}}"),
    ("matrix", "42", r"\boxed{\begin{pmatrix}41&42\end{pmatrix}}"), ("nan", "42", r"\boxed{\text{nan}}"),
    ("bare nan", "nan", r"\boxed{5}"), ("infinity", "42", r"\boxed{\infty}"),
    ("zero by zero", "42", r"\boxed{\frac{0}{0}}"), ("zero times gold by zero", "42", r"\boxed{\frac{42 \cdot 0}{0}}"),
    ("by zero", r"\frac{1}{0}", r"\boxed{\infty}"), ("order", "(1,2)", r"\boxed{(2,1)}"),
    ("point as list", "(1,2)", r"\boxed{2,1}"), ("rounding", r"\frac{1}{3}", r"\boxed{0.33}"),
    ("nearly", "42", r"\boxed{42.0000001}"), ("tiny", "0", r"\boxed{0.0000001}"), ("truth", "42", r"\boxed{True}"),
    ("word", "42", r"\boxed{\text{the answer}}"), ("empty", "42", r"\boxed{}"),
    ("empty set", "42", r"\boxed{\emptyset}"), ("two boxes, right first", "42", r"\boxed{42} \boxed{43}"),
    ("box in a box", "42", r"\boxed{42 \boxed{43}}"),
    ("box before the end of thought", "42", r"<think>\boxed{42}</think> 43"), ("letters", "A", r"\boxed{ABCD}"),
    ("letters or", "A", r"\boxed{A \text{ or } B}"), ("letters listed", "A", r"\boxed{A, B, C, D}"),
    ("import", "42", r"\boxed{__import__('os').getpid()}"), ("bare import", "42", "__import__('os').getpid()"),
    ("eval", "42", r"\boxed{eval('40+2')}"), ("subclasses", "42", r"\boxed{().__class__.__bases__[0]}"),
    ("lambda", "42", r"\boxed{(lambda: 42)()}"), ("exec in text", "42", r"\boxed{\text{exec('x=42')}}"),
    ("or behind a unit", "42", r"\boxed{42 \text{ or 43}}"),
    ("other number as a unit", "42", r"\boxed{42 \quad \text{43}}"), ("alternatives", "42", r"\boxed{41 | 42}"),
    ("arrow", "42", r"\boxed{41 \to 42}"), ("aligned", "42", r"\boxed{41 & 42}"),
    ("longer chain", "42", r"\boxed{41 = 42 = 42}"), ("sentence", "42", r"\boxed{41. 42}"),
    ("residue", "42", r"\boxed{x \equiv 42 \pmod{43}}"), ("format", "42", r"\boxed{{gold}}"),
    ("gold by name", "42", r"\boxed{\text{gold}}"), ("percent format", "42", r"\boxed{%s}"),
    ("comment", "42", "\\boxed{43 % 42\n}"),
]  # fmt: skip
