#include_next <iostream>
