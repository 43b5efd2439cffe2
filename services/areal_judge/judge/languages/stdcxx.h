#include_next <bits/stdc++.h>
