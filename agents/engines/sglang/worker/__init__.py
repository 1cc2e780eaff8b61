"""Parts that run in SGLang's scheduler process: the plugin, the draft worker and its trees."""
