"""One program a language that does what the first word of its input says: sum, exit, fail, loop, hog, deep."""

from __future__ import annotations

C = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static long deep(volatile long n) { return n ? 1 + deep(n - 1) : 0; }
int main(void) {
    char mode[16]; long total = 0, one;
    if (scanf("%15s", mode) != 1) return 9;
    if (!strcmp(mode, "sum")) { while (scanf("%ld", &one) == 1) total += one; printf("%ld\n", total); }
    if (!strcmp(mode, "exit")) return 7;
    if (!strcmp(mode, "fail")) *(volatile int *)8 = 1;
    if (!strcmp(mode, "loop")) for (volatile int i = 0;; i++);
    if (!strcmp(mode, "hog")) for (;;) memset(malloc(1 << 24), 1, 1 << 24);
    if (!strcmp(mode, "deep")) printf("%ld\n", deep(100000));
    return 0;
}
"""

CPP = r"""
#include <bits/stdc++.h>
using namespace std;
static long deep(volatile long n) { return n ? 1 + deep(n - 1) : 0; }
int main() {
    string mode; long total = 0, one;
    cin >> mode;
    if (mode == "sum") { while (cin >> one) total += one; cout << total << endl; }
    if (mode == "exit") return 7;
    if (mode == "fail") throw runtime_error("no");
    if (mode == "loop") for (volatile int i = 0;; i++);
    if (mode == "hog") { vector<string> kept; for (;;) kept.push_back(string(1 << 24, 'x')); }
    if (mode == "deep") cout << deep(100000) << endl;
}
"""

JAVASCRIPT = r"""
const words = require("fs").readFileSync(0, "utf8").trim().split(/\s+/);
const deep = (n) => (n ? 1 + deep(n - 1) : 0);
switch (words[0]) {
  case "sum": console.log(words.slice(1).map(Number).reduce((a, b) => a + b, 0)); break;
  case "exit": process.exit(7);
  case "fail": throw new Error("no");
  case "loop": for (;;);
  case "hog": { const kept = []; for (;;) kept.push(Buffer.alloc(1 << 24, 1)); }
  case "deep": console.log(deep(100000)); break;
}
"""

BASH = r"""
read -r mode rest
case $mode in
  sum) total=0; for one in $rest; do total=$((total + one)); done; echo $total;;
  exit) exit 7;;
  fail) no_such_command; exit $?;;
  loop) while :; do :; done;;
  hog) text=0123456789abcdef; while :; do text=$text$text; done;;
  deep) deep() { if [ "$1" = 0 ]; then echo 0; else echo $((1 + $(deep $(($1 - 1))))); fi; }; deep 3;;
esac
"""

JAVA = r"""
import java.util.*;
public class Solution {
    record Pair(int left, int right) {}
    static int deep(int n) { return n == 0 ? 0 : 1 + deep(n - 1); }
    public static void main(String[] arguments) {
        Scanner input = new Scanner(System.in);
        switch (input.next()) {
            case "sum":
                long total = 0;
                while (input.hasNextLong()) total += input.nextLong();
                System.out.println(total);
                break;
            case "exit": System.exit(7);
            case "fail": throw new IllegalStateException("no");
            case "loop": for (;;);
            case "hog": List<byte[]> kept = new ArrayList<>(); for (;;) kept.add(new byte[1 << 22]);
            case "deep": System.out.println(deep(100000)); break;
        }
    }
}
"""

GO = r"""
package main

import (
	"bufio"
	"fmt"
	"os"
)

func deep(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + deep(n-1)
}

func main() {
	input := bufio.NewReader(os.Stdin)
	var mode string
	fmt.Fscan(input, &mode)
	switch mode {
	case "sum":
		total, one := 0, 0
		for {
			if _, err := fmt.Fscan(input, &one); err != nil {
				break
			}
			total += one
		}
		fmt.Println(total)
	case "exit":
		os.Exit(7)
	case "fail":
		panic("no")
	case "loop":
		for {
		}
	case "hog":
		kept := [][]byte{}
		for {
			block := make([]byte, 1<<24)
			for i := range block {
				block[i] = 1
			}
			kept = append(kept, block)
		}
	case "deep":
		fmt.Println(deep(100000))
	}
}
"""

RUST = r"""
use std::io::Read;

fn seen<T>(value: &T) { unsafe { std::ptr::read_volatile(value as *const T as *const u8); } }

fn deep(n: u64) -> u64 { seen(&n); if n == 0 { 0 } else { 1 + deep(n - 1) } }

fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let mut words = text.split_whitespace();
    match words.next().unwrap() {
        "sum" => println!("{}", words.map(|one| one.parse::<i64>().unwrap()).sum::<i64>()),
        "exit" => std::process::exit(7),
        "fail" => panic!("no"),
        "loop" => loop { seen(&0u8); },
        "hog" => { let mut kept = Vec::new(); loop { kept.push(vec![1u8; 1 << 24]); seen(&kept[0][5]); } }
        "deep" => println!("{}", deep(100000)),
        _ => {}
    }
}
"""

PYTHON = r"""
import sys
mode, *words = sys.stdin.read().split()
if mode == "sum": print(sum(map(int, words)))
if mode == "exit": sys.exit(7)
if mode == "fail": raise ValueError("no")
if mode == "loop":
    while True: pass
if mode == "hog":
    kept = []
    while True: kept.append(b"x" * (1 << 24))
if mode == "deep":
    sys.setrecursionlimit(200_000)
    deep = lambda n: n and 1 + deep(n - 1)
    print(deep(100_000))
"""

PROGRAMS = {
    "python": PYTHON,
    "c": C,
    "cpp": CPP,
    "javascript": JAVASCRIPT,
    "bash": BASH,
    "java": JAVA,
    "go": GO,
    "rust": RUST,
}

FAILS = {  # language → (exit code, signal) of its "fail"
    "python": (1, None),
    "c": (None, 11),
    "cpp": (None, 6),
    "javascript": (1, None),
    "bash": (127, None),
    "java": (1, None),
    "go": (2, None),
    "rust": (101, None),
}

BROKEN = {  # language → a source that no compiler takes, and a word of what it says
    "c": ("int main(void) { return undefined_name; }", "undefined_name"),
    "cpp": ("int main() { std::vector<int> v; return undefined_name; }", "error"),
    "java": ("class Main { public static void main(String[] a) { undefined_name(); } }", "undefined_name"),
    "go": ("package main\nfunc main() { undefined_name() }", "undefined_name"),
    "rust": ("fn main() { undefined_name(); }", "undefined_name"),
}
