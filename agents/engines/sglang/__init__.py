"""SGLang as an engine of turntree, and turntree's draft worker inside SGLang."""
